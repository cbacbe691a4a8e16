/*
 * Two owners with two tickets each in one queue: tickets of an owner share its
 * turn, so a new request for a free lock is granted if an own ticket heads the queue.
 */
#define OWNERS	2
#define SLOTS	2
#define MAX_FENCE	3
#define CALLS	(ACQUIRE | LOOK | RELEASE | TRY)
#include "lease.pml"

init {
	atomic {
		start();
		run Client(0, 1, ACQUIRE | LOOK, 1, 2);
		run Client(1, 2, ACQUIRE | LOOK, 1, 1);
		run Client(2, 2, TRY | RELEASE, 1, 2);
		run Clock()
	}
}
