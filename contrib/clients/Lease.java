import java.sql.*;
import java.util.concurrent.*;
import javax.sql.DataSource;
/** Work under a lease of leaselock, over JDBC; it is renewed in the background, so a pool needs a spare connection.
 *  try (Lease lease = new Lease(source, "nightly", "host-a", "public", 60, 30)) {  // seconds; NotHeld: somebody else holds it
 *      lease.lost.thenRun(worker::interrupt);
 *      lease.transaction(db -> db.createStatement().executeUpdate("INSERT INTO report ..."));
 *  }                                                // LS001, from COMMIT, too: stop, never retry
 *  Once it is lost or was not renewed in time, "lost" has the reason, and check(), transaction(), close() throw NotHeld. */
public final class Lease implements AutoCloseable {
    public interface Work<T> { T run(Connection db) throws SQLException; }
    private interface Undo extends AutoCloseable { void close() throws SQLException; }
    /** The lock was not acquired, or is no longer held; the message is the state or the reason. */
    public static final class NotHeld extends RuntimeException { NotHeld(String state) { super(state); } }
    private static final int AGAIN = 500, PATIENCE = 3000;  // ms: pause after a failed connection; minimum time to retry
    public final CompletableFuture<String> lost = new CompletableFuture<>();
    private final DataSource source;
    private final String name, scope;
    private volatile Object ticket;
    private volatile long fence, deadline, pause;
    private volatile boolean over;
    private volatile SQLException failure;

    public Lease(DataSource source, String name, String owner, String scope, int lease, int wait)
            throws SQLException, InterruptedException {
        this.source = source; this.name = name; this.scope = scope;
        Object[] request = { name, owner, lease + " s", wait + " s", scope, java.util.UUID.randomUUID() };
        long giveUp = System.nanoTime() + Math.max(wait * 1000L, PATIENCE) * 1_000_000;
        String state;
        do {  // even after a failure: the request id finds a ticket that the call may have made
            Thread.sleep(pause);
            state = call("acquire(?, ?, ?::interval, ?::interval, ?, ?)", request);
        } while (state.equals("waiting") || state.equals("unreachable") && System.nanoTime() - giveUp < 0);
        if (failure != null) throw failure;
        if (!state.equals("held")) throw new NotHeld(state);
        later(pause, () -> look("renew", true));
    }

    public long fence() { return fence; }
    public void check() {
        if (!over && System.nanoTime() - deadline >= 0) lost.complete("not renewed in time");
        if (lost.isDone()) throw new NotHeld(lost.join());
    }
    public <T> T transaction(Work<T> work) throws SQLException {
        check();
        try (Connection db = source.getConnection(); Undo undo = db::rollback) {
            db.setAutoCommit(false);
            query(db, "SELECT leaselock.fence_assert(?, ?, ?)", name, fence, scope);
            T result = work.run(db);
            query(db, "SELECT");  // fails after an error, where COMMIT would silently roll back
            db.commit();
            return result;
        } catch (SQLException error) {
            if ("LS001".equals(error.getSQLState())) later(0, () -> look("renew", false));  // to inform other workers
            throw error;
        }
    }

    @Override public void close() {
        over = true;  // if the release fails, the lease runs out
        later(0, () -> look("release", false)).completeOnTimeout(null, PATIENCE, TimeUnit.MILLISECONDS).join();
        check();
    }
    private void look(String function, boolean again) {
        String state = call(function + "(?)", ticket);
        if (!state.matches("held|released|unreachable|refused")) lost.complete(state);
        if (again && !over && !lost.isDone()) later(pause, () -> look(function, true));
    }
    private static CompletableFuture<Void> later(long ms, Runnable task) {
        Executor daemon = run -> { Thread thread = new Thread(run); thread.setDaemon(true); thread.start(); };
        return CompletableFuture.runAsync(task, CompletableFuture.delayedExecutor(ms, TimeUnit.MILLISECONDS, daemon));
    }
    private String call(String function, Object... values) {
        long sent = System.nanoTime();  // the lease is timed from before the call
        pause = AGAIN; failure = null;
        try (Connection db = source.getConnection()) {
            db.setAutoCommit(true);
            ResultSet answer = query(db, "SELECT * FROM leaselock.lease_" + function, values);
            ticket = answer.getObject("ticket");
            pause = answer.getLong("next_call_ms");
            if (answer.getString("state").equals("held")) {
                fence = answer.getLong("fence");
                deadline = sent + answer.getLong("remaining_ms") * 1_000_000;
                later(answer.getLong("remaining_ms"), this::check);
            }
            return answer.getString("state");
        } catch (SQLException error) {
            failure = error;
            return String.valueOf(error.getSQLState()).matches("null|08...|53...|57P..") ? "unreachable" : "refused";
        }
    }
    private static ResultSet query(Connection db, String sql, Object... values) throws SQLException {
        PreparedStatement statement = db.prepareStatement(sql);
        for (int i = 0; i < values.length; i++) statement.setObject(i + 1, values[i]);
        ResultSet answer = statement.executeQuery();
        answer.next();
        return answer;
    }
}
