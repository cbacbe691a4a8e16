/* Two tickets an owner: depth, releases in the middle, shared turns. */
#define OWNERS	2
#define SLOTS	2
#define CALLS	(ACQUIRE | CHECK | LOOK | RELEASE | RENEW | TRY)
#include "lease.pml"

init {
	atomic {
		start();
		run Client(0, 1, TRY | RENEW | RELEASE, 1, 3);
		run Client(1, 1, RENEW | RELEASE | CHECK, 1, 2);
		run Client(2, 2, ACQUIRE | LOOK, 1, 1);
		run Clock()
	}
}
