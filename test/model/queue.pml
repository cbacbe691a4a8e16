/* One lock, three owners, two of them with two sessions that share a ticket. */
#define CALLS	(ACQUIRE | LOOK | RELEASE)
#include "lease.pml"

init {
	atomic {
		start();
		run Client(0, 1, RELEASE, 1, 1);
		run Client(1, 2, ACQUIRE | LOOK, 1, 2);
		run Client(2, 2, ACQUIRE | LOOK, 1, 1);
		run Client(3, 3, ACQUIRE | LOOK | RELEASE, 1, 2);
		run Clock()
	}
}
