/*
 * Two locks, and transactions that touch both.  A wait may end in a deadlock
 * error here, for two locks taken in crossed order are the caller's affair.
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
