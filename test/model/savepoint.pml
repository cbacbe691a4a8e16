/* ROLLBACK TO rolls back rows, tags, checks, and early verifications of checks. */
#define OWNERS	2
#define CALLS	(ACQUIRE | CHECK | LOOK | RELEASE | SAVEPOINT | TRY)
#include "lease.pml"

init {
	atomic {
		start();
		run Client(0, 1, TRY | LOOK | RELEASE | CHECK | SAVEPOINT, 1, 4);
		run Client(1, 2, ACQUIRE | LOOK | RELEASE, 1, 2);
		run Client(2, 1, RELEASE, 1, 1);
		run Clock()
	}
}
