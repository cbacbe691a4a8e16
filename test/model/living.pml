/*
 * A waiter that stays alive is granted the lock in the end, whatever the others
 * do; they may die at any time.  While another holds the lock, it sleeps until it
 * is woken.  Needs weak fairness.
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
		run Client(1, 2, ACQUIRE | LOOK, 1, 2);
		run Waiter(2, 3);
		run Clock()
	}
}
