"""Work under a lease of leaselock, over psycopg 3.

    connect = functools.partial(psycopg.connect, "dbname=shop connect_timeout=3")
    with Lease(connect, "nightly", wait=30) as lease:  # NotHeld: somebody else holds it
        lease.check()                                  # NotHeld, here and below: stop
        with lease.transaction() as db:
            db.execute("INSERT INTO report ...")       # LS001, from COMMIT, too: stop, never retry

connect() opens a connection, or is the method "connection" of a psycopg_pool with two to spare.
The lease is renewed in the background.  If it is lost or cannot be renewed in time, the future "lost"
gets the reason at once (see lost.add_done_callback()), and the block ends with NotHeld.
"""
import contextlib
import threading
import time
import uuid
from concurrent.futures import Future, InvalidStateError
import psycopg

AGAIN, PATIENCE = 0.5, 3  # seconds: pause after a failed connection, and minimum time to retry


class NotHeld(Exception):
    """The lock was not acquired, or is no longer held; the argument is the state or the reason."""


class Lease:
    def __init__(self, connect, name, owner=None, *, lease=60, wait=0, scope="public"):
        self._connect, self._lease, self._wait, self.name, self.scope = connect, lease, wait, name, scope
        self._request = name, owner or str(uuid.uuid4()), f"{lease} s", f"{wait} s", scope, uuid.uuid4()
        self.state, self.ticket, self.lost, self._pause, self._over = "waiting", None, Future(), 0, threading.Event()

    def __enter__(self):
        give_up = time.monotonic() + max(self._wait, PATIENCE)
        try:
            while self.state == "waiting":
                time.sleep(self._pause)
                try:
                    self._call("acquire(%s, %s, %s, %s, %s, %s)", *self._request)
                except psycopg.OperationalError:  # the request id finds a ticket that the call may have made
                    if time.monotonic() > give_up:
                        raise
            if self.state != "held":
                raise NotHeld(self.state)
        except BaseException:  # including Control-C during the wait
            self._ask("release").join(PATIENCE)
            raise
        threading.Thread(target=self._keep, daemon=True).start()
        return self

    def __exit__(self, kind, error, trace):
        self._over.set()
        self._ask("release").join(PATIENCE)  # if that fails, the lease runs out
        if kind is None and self.lost.done():
            raise NotHeld(self.lost.result())

    def check(self):
        with contextlib.suppress(InvalidStateError):  # already lost
            if time.monotonic() >= self._deadline:
                self.lost.set_result("not renewed in time")
        if self.lost.done():
            raise NotHeld(self.lost.result())

    @contextlib.contextmanager
    def transaction(self):
        self.check()
        try:
            with self._connect() as db, db.transaction():
                db.execute("SELECT leaselock.fence_assert(%s, %s, %s)", (self.name, self.fence, self.scope))
                yield db
                db.execute("SELECT")  # fails after an error, where COMMIT would silently roll back
        except psycopg.Error as error:
            if error.diag.sqlstate == "LS001":
                self._ask("renew")  # so that "lost" is set, if it is this lease
            raise

    def _call(self, function, *values):
        self._pause, sent = AGAIN, time.monotonic()  # the lease is timed from before the call
        with self._connect() as db, db.cursor(row_factory=psycopg.rows.namedtuple_row) as cursor:
            answer = cursor.execute(f"SELECT * FROM leaselock.lease_{function}", values).fetchone()
        self.ticket, self.state, self._pause = answer.ticket, answer.state, (answer.next_call_ms or 0) / 1000
        if answer.state == "held":
            self.fence, self._deadline = answer.fence, sent + answer.remaining_ms / 1000
        return answer.state

    def _ask(self, function):  # in a thread, because it may take any time
        def ask():
            with contextlib.suppress(psycopg.Error, InvalidStateError):
                if self.ticket and self._call(f"{function}(%s)", self.ticket) not in ("held", "released"):
                    self.lost.set_result(self.state)
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        return thread

    def _keep(self):
        with contextlib.suppress(NotHeld):
            while not self._over.wait(min(self._pause, self._deadline - time.monotonic())):
                self.check()
                self._ask("renew").join(min(self._lease / 3, self._deadline - time.monotonic()))
