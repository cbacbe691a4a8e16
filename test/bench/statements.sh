# Sourced by test/bench/pairs and test/count/run: the statements of a case, as a script
# for pgbench, for a database that test/bench/pairs.sql has set up.
#
# A pair acquires the lock that :n names and releases it.  In the cases called next the
# client already holds a lock, and one statement releases it and acquires another.
# Each script sets :ok to true if the answers were right, and fails otherwise; "\gset"
# fails if there is not exactly one row.

# statements CASE
statements() {
	local schema=leaselock
	[[ $1 != hand-* ]] || schema=hand
	case $1 in
	tickets | tickets-grants | tickets-all | hand-tickets) cat <<-SQL
		SELECT ticket FROM $schema.lease_acquire('job.' || :n::text, 'worker-' || :client_id::text) WHERE state = 'held' \\gset
		SELECT state = 'released' AS ok FROM $schema.lease_release(:ticket) \\gset
		SQL
		;;
	tickets-list) cat <<-SQL
		SELECT (leaselock.lease_acquire('job.' || :n::text, 'worker-' || :client_id::text)).ticket \\gset
		SELECT (leaselock.lease_release(:ticket)).state = 'released' AS ok \\gset
		SQL
		;;
	tickets-next) say "SELECT (leaselock.lease_release(:ticket)).state = 'released' AS ok, (leaselock.lease_acquire('job.' || :n::text, 'worker-' || :client_id::text)).ticket \\gset" ;;
	named | hand-named) cat <<-SQL
		SELECT $schema.try_lock('job.' || :n::text, 'worker-' || :client_id::text, '60 s') AS fence \\gset
		SELECT $schema.release_lock('job.' || :n::text, 'worker-' || :client_id::text) AS ok \\gset
		SQL
		;;
	named-next) say "SELECT leaselock.release_lock('job.' || :last::text, 'worker-' || :client_id::text) AS ok, leaselock.try_lock('job.' || :n::text, 'worker-' || :client_id::text, '60 s') AS fence \\gset" ;;
	updates) row_updates row_locks ;;
	updates-roomy) row_updates roomy_locks ;;
	advisory) cat <<-SQL
		SELECT pg_advisory_lock(:n);
		SELECT pg_advisory_unlock(:n) AS ok \\gset
		SQL
		;;
	shedlock) cat <<-SQL
		UPDATE shed_locks SET lock_until = timezone('utc', CURRENT_TIMESTAMP) + cast('60000 milliseconds' AS interval), locked_at = timezone('utc', CURRENT_TIMESTAMP), locked_by = 'worker-' || :client_id::text WHERE name = 'job.' || :n::text AND lock_until <= timezone('utc', CURRENT_TIMESTAMP) RETURNING true AS ok \\gset
		UPDATE shed_locks SET lock_until = CASE WHEN locked_at + cast('0 milliseconds' AS interval) > timezone('utc', CURRENT_TIMESTAMP) THEN locked_at + cast('0 milliseconds' AS interval) ELSE timezone('utc', CURRENT_TIMESTAMP) END WHERE name = 'job.' || :n::text AND locked_by = 'worker-' || :client_id::text RETURNING true AS ok \\gset
		SQL
		;;
	empty) cat <<-SQL
		SELECT empty_lock('job.' || :n::text, 'worker-' || :client_id::text, '60 s') AS fence \\gset
		SELECT empty_lock('job.' || :n::text, 'worker-' || :client_id::text, '60 s') = 1 AS ok \\gset
		SQL
		;;
	empty-from) cat <<-SQL
		SELECT fence FROM empty_lock('job.' || :n::text, 'worker-' || :client_id::text, '60 s') fence WHERE fence = 1 \\gset
		SELECT fence = 1 AS ok FROM empty_lock('job.' || :n::text, 'worker-' || :client_id::text, '60 s') fence \\gset
		SQL
		;;
	fence-none) fenced_update unguarded ;;
	fence-trigger) fenced_update empty_guarded ;;
	fence-guard) fenced_update guarded ;;
	fence-column) fenced_update column_guarded ;;
	fence-from) fenced_update unguarded "leaselock.fence_assert('hold.' || :client_id::text, :fence)" ;;
	fence-from-empty) fenced_update unguarded "empty_assert('hold.' || :client_id::text, :fence)" ;;
	fence-assert) say "SELECT true AS ok, leaselock.fence_assert('hold.' || :client_id::text, :fence) \\gset" ;;
	fence-empty) say "SELECT true AS ok, empty_assert('hold.' || :client_id::text, :fence) \\gset" ;;
	fence-block-none | fence-block-empty | fence-block-assert)
		say "BEGIN;"
		case $1 in
		*-empty) say "SELECT empty_assert('hold.' || :client_id::text, :fence);" ;;
		*-assert) say "SELECT leaselock.fence_assert('hold.' || :client_id::text, :fence);" ;;
		esac
		fenced_update unguarded
		say "COMMIT;"
		;;
	*) return 1 ;;
	esac
	printf '%s\n' '\if not :ok' 'SELECT 1 / 0;' '\endif'
}

# row_updates TABLE: a pair of UPDATEs
row_updates() {
	cat <<-SQL
	UPDATE $1 SET owner = 'worker-' || :client_id::text, token = token + 1, expires_at = clock_timestamp() + interval '60 s' WHERE name = 'job.' || :n::text AND (owner IS NULL OR expires_at < clock_timestamp()) RETURNING token \\gset
	UPDATE $1 SET owner = NULL WHERE name = 'job.' || :n::text AND token = :token RETURNING true AS ok \\gset
	SQL
}

# fenced_update TABLE [FUNCTION]
fenced_update() {
	say "UPDATE $1 SET value = value + 1, fence = :fence ${2:+FROM $2 }WHERE id = :client_id RETURNING true AS ok \\gset"
}

# first_take CASE: what a client runs before its first transaction, with :n set
first_take() {
	case $1 in
	fence-*) say "SELECT fence FROM holds WHERE client = :client_id \\gset" ;;
	tickets-next) say "SELECT (leaselock.lease_acquire('job.' || :n::text, 'worker-' || :client_id::text)).ticket \\gset" ;;
	named-next) say "SELECT leaselock.try_lock('job.' || :n::text, 'worker-' || :client_id::text, '60 s') AS fence \\gset" ;;
	esac
}

# events_setting CASE: the setting that it needs, if any
events_setting() {
	case $1 in tickets-grants | tickets-all) say "leaselock.events=${1#tickets-}" ;; esac
}
