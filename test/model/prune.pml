/* Ended tickets and idle locks are removed; fences continue from the floor. */
#define OWNERS	2
#define PRUNING
#define CALLS	(ACQUIRE | CHECK | LOOK | PRUNE | RELEASE | RENEW | TRY)
#include "lease.pml"

init {
	atomic {
		start();
		run Client(0, 1, TRY | RENEW | RELEASE | CHECK, 1, 3);
		run Client(1, 2, ACQUIRE | LOOK | RELEASE, 2, 1);
		run Client(2, 1, PRUNE, 2, 1);
		run Clock()
	}
}
