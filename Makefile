# leaselock: built with PGXS. Only leaselock.control defines the version.
#
#   make && make install         build and install (PG_CONFIG=... for another server)
#   make CLI=no                  the extension without the program leaselock
#   make install-cli PGXS= bindir=/usr/bin mandir=/usr/share/man
#                                the program alone, with libpq and without a server's files
#   make installcheck            the suites against the running server
#   make installcheck TEMP_INSTANCE=1
#                                the same, but regress and isolation start their own servers
#   make test                    build, private installation, every suite; see test/run
#   make unit                    the rules without a server, on every small world; see test/unit
#   make unit-mutations          whether that finds broken rules; see test/unit/mutate
#   make test-ubsan              regress and isolation, with a library that traps undefined behaviour
#   make test-majors             every suite on 17, 18 and 19; see test/majors
#   make check-layers            which files use which in src; see test/layers
#   make indent                  format the C source with pg_bsd_indent; see test/indent
#   make check-indent            whether that would change anything
#   make demo                    the two-worker story; see test/demo
#   make model                   the locking protocol, checked by spin; see test/model
#   make bench                   what calls and fences cost; see test/bench.  One of them:
#                                make bench BENCH=pairs.  BENCH=soak (ten minutes) and
#                                BENCH=shards (five) run only if named
#   make deb                     Debian packages into build-deb/; see packaging/deb
#   make test-deb                the same in a bare Debian, followed by lintian, the
#                                installation and the suites; see packaging/test-deb
#   make dist                    the zip for PGXN; see packaging/dist
#   make test-dist               whether pgxn installs from it; see packaging/test-dist
#   make pictures                the pictures of the documentation, from doc/pictures
#   make count                   the instructions that calls and fences take, under valgrind,
#                                compared with committed figures; see test/count
#
# test/sql and test/specs contain the input of the tests, expected/ the expected
# output.  Regress and isolation tests share expected/ and results/, so no two may
# have the same name.  None may have the name of a file in sql/, because pg_regress
# looks for its input there first.

top        := $(dir $(firstword $(MAKEFILE_LIST)))
EXTVERSION := $(shell sed -n "s/^default_version *= *'\(.*\)'.*/\1/p" $(top)leaselock.control)

EXTENSION  = leaselock
MODULE_big = leaselock
PGFILEDESC = "leaselock - exclusive leases with fencing tokens"

# by name: a wildcard finds nothing in a build outside the source tree
DATA = sql/leaselock--1.0.sql

# The pages are installed into the folder that their links expect, see docmoduledir.
DOCS = $(patsubst $(top)%,%,$(wildcard $(top)doc/*.md $(top)doc/*.svg))
DOCS_ABOVE = README.md CHANGELOG.md LICENSE $(patsubst $(top)%,%,$(wildcard $(top)CONTRIBUTING.md))

OBJS = \
	src/leaselock.o \
	src/api/arguments.o \
	src/api/result.o \
	src/api/tickets.o \
	src/api/named.o \
	src/api/waiting.o \
	src/api/fences.o \
	src/api/triggers.o \
	src/api/status.o \
	src/api/events.o \
	src/api/admin.o \
	src/core/decide.o \
	src/core/history.o \
	src/core/serverlog.o \
	src/core/record.o \
	src/core/scope.o \
	src/core/changes.o \
	src/core/queue.o \
	src/core/deadlock.o \
	src/core/fence.o \
	src/core/protocol.o \
	src/core/lease.o \
	src/core/wait.o \
	src/core/prune.o \
	src/core/operate.o \
	src/core/commit.o \
	src/store/siphash.o \
	src/store/tag.o \
	src/store/clock.o \
	src/store/table.o \
	src/store/scan.o \
	src/store/installation.o \
	src/store/recent.o \
	src/store/write.o \
	src/store/locks.o \
	src/store/tickets.o \
	src/store/hints.o \
	src/store/scopes.o \
	src/store/events.o \
	src/store/floor.o

# Each object depends on all headers: the files are few and compile quickly.
SRC_HEADERS = $(wildcard $(top)src/*.h $(top)src/api/*.h $(top)src/core/*.h $(top)src/store/*.h)

# the program leaselock, see below
CLI_OBJS = \
	src/cli/text.o \
	src/cli/help.o \
	src/cli/event.o \
	src/cli/output.o \
	src/cli/query.o \
	src/cli/link.o \
	src/cli/acquire.o \
	src/cli/watchdog.o \
	src/cli/child.o \
	src/cli/run.o \
	src/cli/command.o \
	src/cli/journal.o \
	$(MCP_OBJS) \
	src/cli/options.o \
	src/cli/main.o

# its subcommand mcp needs jansson, to read and write JSON
MCP_OBJS = $(if $(HAVE_JANSSON), \
	src/cli/mcp_wire.o \
	src/cli/mcp_tool.o \
	src/cli/mcp_value.o \
	src/cli/mcp_cancel.o \
	src/cli/mcp_answer.o \
	src/cli/mcp_lease.o \
	src/cli/mcp_outcome.o \
	src/cli/mcp_call.o \
	src/cli/mcp_turn.o \
	src/cli/mcp_method.o \
	src/cli/mcp.o, \
	src/cli/mcp_none.o)

PG_CPPFLAGS = -DLEASELOCK_VERSION='"$(EXTVERSION)"' -I$(top)src

# Listed by hand: the order matters, and a forgotten file shows in review.
# install goes first, uninstall last.  rollback, plan_cache and fences compare
# fences with the clock, so they come before the tests that move it: cleaning up
# after those raises the floor of fences above the clock, which is then set back.
REGRESS = \
	install \
	settings \
	rollback \
	plan_cache \
	arguments \
	fences \
	fences_prepared \
	tickets \
	reentrancy \
	request_id \
	notes \
	parallel \
	release_all \
	named_locks \
	transaction_isolation \
	lease_status \
	clock \
	search_path \
	queue_places \
	queue_positions \
	queue_promotion \
	queue_cancel \
	queue_timeout \
	queue_request \
	queue_identity \
	queue_named_lock \
	queue_transaction \
	queue_limit \
	deadlock \
	fence_guard \
	fence_rules \
	fence_monotonic \
	hints \
	fence_writes \
	access \
	scopes \
	lease_scopes \
	break_prune \
	visibility \
	events \
	hostile \
	uninstall

ISOLATION = \
	acquire_acquire \
	acquire_late \
	break_wait \
	cache_floor \
	cache_open_tables \
	cache_tids \
	cache_queues \
	cache_recent \
	cache_scopes \
	cache_waiting \
	deadlock_crossing \
	deadlock_ring \
	enqueue_lapse \
	enqueue_release \
	events_deadlock \
	events_overtake \
	events_serializable \
	fence_commit_wait \
	fence_deadlock \
	fence_lapse \
	fence_release \
	fence_savepoint \
	fence_snapshot \
	fence_takeover \
	head_busy \
	liveness_tag \
	named_queue \
	named_takeover \
	promotion_claim \
	promotion_third \
	prune_acquire \
	prune_fence \
	prune_renew \
	prune_wait \
	queue_bystander \
	queue_deadlock_one \
	queue_holder \
	queue_keys \
	queue_order \
	queue_passed \
	release_all_moved \
	release_takeover \
	renew_bystander \
	renew_takeover \
	request_promoted \
	request_retry \
	rollback_acquire \
	rollback_release \
	rollback_renew \
	scope_acquire \
	scope_hostile \
	serializable_renew \
	serializable_takeover \
	status_moment \
	ticket_queue \
	try_hang \
	wait_cancel \
	wait_crossing \
	wait_left \
	wait_levels \
	waiter_timeout

# Specs whose transactions do not name an isolation level: "make test" runs them at
# all three, and the outcome must be the same.  Against a running server, choose one
# with PGOPTIONS='-c default_transaction_isolation=serializable'.
EVERY_LEVEL = \
	acquire_acquire \
	acquire_late \
	cache_recent \
	deadlock_crossing \
	events_serializable \
	fence_commit_wait \
	fence_lapse \
	fence_release \
	fence_savepoint \
	fence_takeover \
	head_busy \
	named_queue \
	named_takeover \
	promotion_third \
	prune_acquire \
	prune_fence \
	queue_bystander \
	queue_keys \
	queue_passed \
	release_all_moved \
	release_takeover \
	renew_bystander \
	renew_takeover \
	request_promoted \
	request_retry \
	rollback_acquire \
	rollback_release \
	rollback_renew \
	scope_hostile \
	status_moment \
	try_hang \
	wait_levels

# These prepare transactions.  They are left out if the running server cannot do that,
# as with the default configuration, unless the command line names them.
PREPARED = \
	fences_prepared \
	cache_floor \
	fence_commit_wait \
	prune_fence \
	scope_hostile

TAP_TESTS    = 1
PROVE_TESTS ?= test/t/*.pl

REGRESS_OPTS   = --inputdir=$(srcdir)/test
ISOLATION_OPTS = --inputdir=$(srcdir)/test --outputdir=. --load-extension=$(EXTENSION)
REGRESS_PREP   = link-expected
ENCODING       = UTF8
NO_LOCALE      = 1

ifdef TEMP_INSTANCE
REGRESS_OPTS   += --temp-instance=./tmp_check_regress --temp-config=$(srcdir)/test/leaselock.conf
ISOLATION_OPTS += --temp-instance=./tmp_check_iso --temp-config=$(srcdir)/test/leaselock.conf
endif
EXTRA_CLEAN = tmp_check_regress tmp_check_iso src/cli/leaselock $(CLI_OBJS) src/cli/mcp*.o \
	test/unit/decide_test $(UNIT_OBJS)

PG_CONFIG ?= pg_config

ifndef TEMP_INSTANCE
ifneq ($(filter installcheck,$(MAKECMDGOALS)),)
LEFT_OUT := $(foreach list,REGRESS ISOLATION,$(if $(filter file,$(origin $(list))),$(filter $(PREPARED),$($(list)))))
ifeq ($(if $(strip $(LEFT_OUT)),$(shell '$(shell $(PG_CONFIG) --bindir)/psql' -XAtc 'SHOW max_prepared_transactions' postgres 2>/dev/null)),0)
REGRESS   := $(filter-out $(LEFT_OUT),$(REGRESS))
ISOLATION := $(filter-out $(LEFT_OUT),$(ISOLATION))
$(info max_prepared_transactions is 0, skipped: $(strip $(LEFT_OUT)))
endif
endif
endif

PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)
ifneq ($(wildcard $(PGXS)),)
include $(PGXS)
else
# "make test" and "make demo" install missing packages, so they must work without them
all install installcheck clean:
	@echo "no PGXS for PG_CONFIG=$(PG_CONFIG): install the server's development files" >&2; exit 1

# what PGXS would define, for the program alone
prefix     ?= /usr/local
bindir     ?= $(prefix)/bin
datarootdir ?= $(prefix)/share
mandir     ?= $(datarootdir)/man
includedir ?= $(shell $(PG_CONFIG) --includedir)
libpq      ?= -L$(shell $(PG_CONFIG) --libdir) -lpq
CFLAGS     ?= -O2 -g -Wall
CPPFLAGS   += $(PG_CPPFLAGS)
MKDIR_P         ?= mkdir -p
INSTALL_PROGRAM ?= install -m 755
INSTALL_DATA    ?= install -m 644
endif

# PGXS puts the pages of every extension into one folder, and does not remove them.
docmoduledir := leaselock/doc
ifneq ($(and $(wildcard $(PGXS)),$(strip $(DOCS))),)
.PHONY: install-doc uninstall-doc
install: install-doc
uninstall: uninstall-doc
install-doc: installdirs
	$(INSTALL_DATA) $(addprefix $(top),$(DOCS_ABOVE)) '$(DESTDIR)$(docdir)/leaselock/'
uninstall-doc:
	rm -rf '$(DESTDIR)$(docdir)/leaselock'
endif

$(OBJS) $(OBJS:.o=.bc): $(SRC_HEADERS) | objdir
src/leaselock.o src/leaselock.bc: $(top)leaselock.control

# The program, a front end that does not use the server's headers.  PGXS builds a
# library or a program, not both, so the rules for the program are here.
.PHONY: cli install-cli uninstall-cli
ifeq ($(CLI),no)
else ifneq ($(wildcard $(includedir)/libpq-fe.h),)
all: cli
install: install-cli
uninstall: uninstall-cli
else ifneq ($(wildcard $(PGXS)),)
all: cli-notice
endif
.PHONY: cli-notice
cli-notice:
	@echo 'no libpq-fe.h in $(includedir): the program leaselock is not built' >&2

HAVE_JANSSON := $(shell $(CC) -I$(includedir) $(CPPFLAGS) -include jansson.h -E -x c /dev/null >/dev/null 2>&1 && echo yes)
ifeq ($(HAVE_JANSSON),)
cli: mcp-notice
else
JANSSON_LIBS ?= -ljansson
endif
# PGXS treats objects as secondary files, so a missing object does not make the
# program out of date; and the list of objects changes when jansson comes or goes.
ifneq ($(filter-out $(wildcard $(MCP_OBJS)),$(MCP_OBJS)),)
src/cli/leaselock: relink
endif
.PHONY: mcp-notice relink
mcp-notice:
	@echo 'no jansson.h: the program leaselock is built without its subcommand mcp' >&2

$(CLI_OBJS): override CPPFLAGS := -I$(includedir) $(CPPFLAGS)
$(CLI_OBJS): $(top)src/cli/cli.h $(top)src/cli/mcp.h | objdir
src/cli/options.o src/cli/mcp_wire.o: $(top)leaselock.control
cli: src/cli/leaselock
src/cli/leaselock: $(CLI_OBJS)
	$(CC) $(CFLAGS) $(CLI_OBJS) $(LDFLAGS) $(LDFLAGS_EX) $(libpq) $(JANSSON_LIBS) -o $@
# where bash looks for completions if mandir is the system's
bashcompletiondir ?= $(dir $(mandir))bash-completion/completions
install-cli: cli
	$(MKDIR_P) '$(DESTDIR)$(bindir)' '$(DESTDIR)$(mandir)/man1' '$(DESTDIR)$(bashcompletiondir)'
	$(INSTALL_PROGRAM) src/cli/leaselock '$(DESTDIR)$(bindir)/leaselock'
	$(INSTALL_DATA) $(top)src/cli/leaselock.1 '$(DESTDIR)$(mandir)/man1/leaselock.1'
	$(INSTALL_DATA) $(top)src/cli/leaselock.bash '$(DESTDIR)$(bashcompletiondir)/leaselock'
	@case ':$(if $(DESTDIR),$(bindir),$(PATH)):' in *:'$(bindir)':*) ;; *) \
		echo '$(bindir) is not in PATH: "make install-cli PGXS=" installs leaselock and its manual page below /usr/local';; esac
uninstall-cli:
	rm -f '$(DESTDIR)$(bindir)/leaselock' '$(DESTDIR)$(mandir)/man1/leaselock.1' '$(DESTDIR)$(bashcompletiondir)/leaselock'

# Outside the source tree the objects need their folder, and pg_regress needs
# expected/ in the folder in which it runs.
.PHONY: objdir link-expected
objdir:
	@mkdir -p src/api src/core src/store src/cli test/unit
link-expected:
	@test -e expected || ln -s $(abspath $(top))/expected expected

# A separate program, made from the files that need no server to run.  It is always
# optimised, because it tries millions of cases.
UNIT_OBJS = \
	test/unit/decide_test.o \
	test/unit/world.o \
	test/unit/promises.o \
	test/unit/event_check.o \
	test/unit/siphash_test.o \
	test/unit/assert_stub.o

# the files that it tests
UNIT_RULES = src/core/decide.o src/core/history.o

.PHONY: unit unit-mutations
unit: test/unit/decide_test
	@./test/unit/decide_test
unit-mutations: test/unit/decide_test
	@CC='$(CC)' CFLAGS="$(subst ",\",$(CPPFLAGS)) $(CFLAGS) -I$(top)src/core" LDFLAGS='$(LDFLAGS) $(LDFLAGS_EX)' \
		$(top)test/unit/mutate $(UNIT_OBJS) $(UNIT_RULES) src/store/siphash.o
$(UNIT_OBJS): override CFLAGS += -O2
$(UNIT_OBJS): $(SRC_HEADERS) $(top)test/unit/unit.h | objdir
test/unit/decide_test: $(UNIT_OBJS) $(UNIT_RULES) src/store/siphash.o
	$(CC) $(CFLAGS) $^ $(LDFLAGS) $(LDFLAGS_EX) -o $@

# The places that must have the version of the control file.
.PHONY: checkver
checkver:
	@cd $(top) && v='$(EXTVERSION)' && fail() { echo "checkver: $$*" >&2; exit 1; } && \
	test -n "$$v" || fail "no default_version in leaselock.control"; \
	test "`sed '/meta-spec/,$$d' META.json | grep -c '"version": "$(EXTVERSION)\.[0-9]*"'`" = 2 || \
		fail "META.json does not say version $$v.x twice"; \
	m=`sed '/"provides"/,$$d; s/^ *"version": "\(.*\)",/\1/p; d' META.json`; \
	head -n 1 packaging/debian/changelog | grep -q "^leaselock ($$m-" || \
		fail "the newest entry of packaging/debian/changelog is not $$m"; \
	test "`sed -n 's/^## \([0-9.]*\).*/\1/p' CHANGELOG.md | head -n 1`" = "$$v" || \
		fail "the newest entry of CHANGELOG.md is not $$v"; \
	test "`printf '%s\n' $(DATA) | sed 's/.*--//; s/\.sql$$//' | sort -V | tail -n 1`" = "$$v" || \
		fail "no script in DATA leads to $$v, or one leads further"

SUITES ?= unit regress isolation tap

# Undefined behaviour ends the process, and so fails a test.
UBSAN = -fsanitize=undefined -fno-sanitize-recover=undefined

.PHONY: test test-ubsan test-majors demo
test:
	@SUITES='$(SUITES)' REGRESS='$(REGRESS)' ISOLATION='$(ISOLATION)' EVERY_LEVEL='$(EVERY_LEVEL)' PROVE_TESTS='$(PROVE_TESTS)' \
		PG_CONFIG='$(PG_CONFIG)' $(top)test/run
test-ubsan:
	@SUITES='$(filter-out tap,$(SUITES))' REGRESS='$(REGRESS)' ISOLATION='$(ISOLATION)' EVERY_LEVEL='$(EVERY_LEVEL)' PG_CFLAGS='$(PG_CFLAGS) $(UBSAN)' \
		PG_CONFIG='$(PG_CONFIG)' $(top)test/run
test-majors:
	@$(top)test/majors
demo:
	@PG_CONFIG='$(PG_CONFIG)' $(top)test/demo
.PHONY: indent check-indent
indent:
	@$(top)test/indent
check-indent:
	@$(top)test/indent --check || [ $$? = 77 ]
# the packages that users install, see packaging/
.PHONY: deb test-deb dist test-dist
deb test-deb dist test-dist: checkver
	@$(top)packaging/$@
.PHONY: check-layers
check-layers: $(OBJS)
	@$(top)test/layers .
# The sources are text files in doc/pictures; graphviz draws one of the pictures.
.PHONY: pictures
pictures:
	awk -f $(top)doc/pictures/timeline.awk $(top)doc/pictures/stale-write.txt >$(top)doc/stale-write.svg
	dot -Tsvg $(top)doc/pictures/ticket.dot | sed '/^<!DOCTYPE/,/>/d; /^<!--.*-->/d; /^<!--/,/-->/d' >$(top)doc/ticket.svg
.PHONY: model
model:
	@$(top)test/model/run
.PHONY: count
count:
	@PG_CONFIG='$(PG_CONFIG)' $(top)test/count/run

BENCH ?= pairs handover growth fence

# Runs all of them, and fails if one of them fails.
.PHONY: bench
bench:
	@rc=0; for bench in $(BENCH); do \
		test -e $(top)test/bench/$$bench || { echo "no test/bench/$$bench"; continue; }; \
		PG_CONFIG='$(PG_CONFIG)' $(top)test/bench/$$bench || rc=1; \
	done; exit $$rc
