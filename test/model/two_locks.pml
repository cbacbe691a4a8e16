/*
 * Two locks, and transactions that use both.  A wait may end in a deadlock error
 * here, because callers must not take two locks in opposite orders.
 */
#define LOCKS	2
#define OWNERS	2
#define MAX_FENCE	3
#define CALLS	(ACQUIRE | CHECK | LOOK | RELEASE | RENEW)
#include "lease.pml"

init {
	atomic {
		start();
		run Client(0, 1, RENEW | RELEASE | CHECK, 1, 3);
		run Client(1, 2, ACQUIRE | LOOK | CHECK, 1, 3);
		run Clock()
	}
}
