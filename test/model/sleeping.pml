/*
 * Like living.pml, but a waiter ahead in the queue gives up while the lock is
 * being released, so the next waiter has to be woken instead.  Needs weak fairness.
 */
#define LIVING	2
#define WAITER
#define CALLS	(ACQUIRE | LOOK | RELEASE)
#include "lease.pml"

ltl granted { <> was_granted }

init {
	atomic {
		woken = true;
		start();
		run Client(0, 1, RELEASE, 1, 1);
		run Client(1, 2, ACQUIRE | RELEASE, 2, 1);
		run Waiter(2, 3);
		run Clock()
	}
}
