# Sourced by test/run and test/demo.
#
# Both run in two halves.  The outer half runs as the caller, installs missing
# packages if it may, and copies the source to a work folder.  The inner half is the
# same script, called again in that copy as an unprivileged user (a server refuses
# to run as root).  It builds and tests.  Then the outer half cleans up.
#
# The extension is installed into a private copy of the server's programs inside
# the work folder.  So nothing outside it changes, no write access to the system is
# needed, and no cluster of this machine sees the build.
#
# Variables: PG_CONFIG, OLD_PG_CONFIG (an older server to upgrade from; the extension
# is built for it too), PG_MAJOR (the major to install if there is no server),
# PG_CFLAGS, CI=true (warnings are errors, and the packages for the tests of poolers
# and drivers are installed), LEASELOCK_SEED (repeats a random test),
# LEASELOCK_HOSTILE_CASES (the number of cases in a random test of the program),
# LEASELOCK_MCP_TOOLS=1 (installs more clients of "leaselock mcp", some 330 MB),
# KEEP=1 (keeps the work folder), KNOBS (what the outer half of a script passes to
# its inner half).

say() { printf '%s\n' "$*"; }
die() { say "$0: $*" >&2; exit 1; }

# ---- outer half -------------------------------------------------------------

missing_server() {
	local pgxs bin
	! { pgxs=$("${PG_CONFIG:-pg_config}" --pgxs 2>/dev/null) && bin=$("${PG_CONFIG:-pg_config}" --bindir) &&
		[ -e "$pgxs" ] && [ -x "$bin/postgres" ] && [ -x "$bin/psql" ] &&
		[ -x "${pgxs%/makefiles/*}/test/isolation/pg_isolation_regress" ]; }
}

missing_tools() {
	! { make --version && prove --version && perl -MIPC::Run -e 1 && gcc -xc -E - <<<'#include <stdio.h>'; } >/dev/null 2>&1
}

apt() {
	# "update" takes a lock that DPkg::Lock::Timeout does not cover
	local try log="$work/apt.log"
	for try in 1 2 3 4 5 6 7 8 9 10; do
		DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@" >"$log" 2>&1 && return
		grep -q 'Could not get lock' "$log" || break
		sleep 6
	done
	cat "$log" >&2
	return 1
}

is_installed() {
	dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed
}

# Only the program's subcommand mcp needs jansson.
missing_jansson() {
	! gcc -xc -E - <<<'#include <jansson.h>' >/dev/null 2>&1
}

install_packages() {
	local want= major package list=
	missing_tools && want="make gcc libc6-dev perl libipc-run-perl"
	missing_server && want="$want server"
	# no reason to stop where it cannot be installed
	missing_jansson && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && want="$want libjansson-dev"
	[ "$want" ] || return 0
	[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null ||
		die "missing: ${want/server/PostgreSQL with its server development files}" \
			"(on Debian 12, as root: apt-get install make gcc libipc-run-perl postgresql-15 postgresql-server-dev-15)"
	apt update || say "could not update the package lists, trying with the present ones" >&2
	major=${PG_MAJOR:-$(apt-cache depends postgresql | sed -n 's/.*Depends: postgresql-\([0-9]*\)$/\1/p' | head -n 1)}
	for package in ${want/server/postgresql-$major postgresql-server-dev-$major}; do
		# naming an installed package would upgrade it, and restart the clusters that use it
		is_installed "$package" || list="$list $package"
	done
	say "installing$list"
	apt install -y --no-install-recommends $list || die "could not install the packages"
	missing_tools || missing_server && die "something is still missing after installing$list"
	return 0
}

# Installs the packages that only the tests of completion, pages, poolers, drivers,
# pg_cron, PL/Proxy, failover and the exporter need, if the language or server that a
# package belongs to is installed.  Without CI=true nothing is installed for these
# tests.  A test that lacks something is skipped, and says so.
install_clients() {
	local package major wanted= list=
	[ "${CI:-}" = true ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 0
	[[ " ${SUITES:-tap} " == *" tap "* ]] || return 0
	major=$("${PG_CONFIG:-pg_config}" --version | sed 's/^[^0-9]*\([0-9]*\).*/\1/')
	for package in bash-completion jq pgbouncer python3-psycopg python3-psycopg2 python3-sqlalchemy python3-django \
		libpostgresql-jdbc-java prometheus-sql-exporter pg-auto-failover-cli \
		"postgresql-$major-auto-failover" "postgresql-$major-cron" "postgresql-$major-plproxy"; do
		[[ $package != *-java ]] || command -v javac >/dev/null || continue
		[[ $package != postgresql-* && $package != pg-auto-* ]] || is_installed "postgresql-$major" || continue
		is_installed "$package" || wanted="$wanted $package"
	done
	if [ "$wanted" ]; then
		apt update
		# a package that the archive does not have would keep apt from installing the others
		for package in $wanted; do
			if [ "$(apt-cache show "$package" 2>/dev/null)" ]; then list="$list $package"; else say "NOT IN THE ARCHIVE: $package" >&2; fi
		done
		say "installing$list"
		[ ! "$list" ] || apt install -y --no-install-recommends $list || say "COULD NOT INSTALL$list" >&2
	fi
	# node looks for modules in the folders above the program
	! command -v npm >/dev/null || npm install --silent --no-audit --no-fund --prefix "$work" pg >"$work/npm.log" 2>&1 </dev/null ||
		{ cat "$work/npm.log"; say "could not install node-postgres"; } >&2
	install_mcp_clients "$top/test/mcp"
	[ ! "${LEASELOCK_MCP_TOOLS:-}" ] || install_mcp_clients "$top/test/mcp/tools"
}

# install_mcp_clients DIR: installs the packages of its package.json, in a folder of
# the same name under the work folder
install_mcp_clients() {
	local dir="$work/npm/${1#"$top/test/"}" how=install
	command -v npm >/dev/null || return 0
	[ ! -e "$1/package-lock.json" ] || how=ci
	mkdir -p "$dir" && cp "$1"/package*.json "$dir" &&
		npm "$how" --silent --no-audit --no-fund --prefix "$dir" >"$work/npm.log" 2>&1 </dev/null ||
		{ cat "$work/npm.log"; say "could not install what ${1#"$top/"} needs"; rm -rf "$dir"; } >&2
}

# Servers under the work folder are ours; a killed driver may have left one running.
stop_servers() {
	local pids file try
	pids=$(for file in $(find "$work" -name postmaster.pid 2>/dev/null); do head -n 1 "$file"; done)
	[ "$pids" ] || return 0
	kill -QUIT $pids 2>/dev/null
	for try in 1 2 3 4 5 6 7 8 9 10; do kill -0 $pids 2>/dev/null || return 0; sleep 0.5; done
}

tidy() {
	[ ! "$inner" ] || kill -- "-$inner" 2>/dev/null
	stop_servers
	if [ "${KEEP:-}" ]; then say "kept: $work" >&2; else rm -rf "$work"; fi
}

# outer SCRIPT: runs the inner half of test/SCRIPT
outer() {
	local user rc dir as=
	inner=
	work=$(mktemp -d "${TMPDIR:-/tmp}/leaselock.XXXXXX") || die "no work folder"
	trap tidy EXIT
	trap 'exit 130' INT
	trap 'exit 143' TERM HUP
	install_packages
	[ "$1" != run ] || install_clients
	mkdir "$work/src" "$work/tmp"
	tar -C "$top" --exclude=./.git -cf - . | tar -C "$work/src" --no-same-owner -xf - || die "could not copy the source"
	# node looks for modules beside the program
	for dir in mcp mcp/tools; do
		[ ! -d "$work/npm/$dir/node_modules" ] || ln -sfn "$work/npm/$dir/node_modules" "$work/src/test/$dir/node_modules"
	done
	chmod 755 "$work"
	if [ "$(id -u)" = 0 ]; then
		user=postgres; id -u "$user" >/dev/null 2>&1 || user=nobody
		chown -R "$user" "$work"
		as="setpriv --reuid=$user --regid=$(id -g "$user") --clear-groups"
	fi
	cd "$work/src"
	# In a process group of its own, so that a signal to the outer half ends the whole
	# inner half at once.  In a clean environment, without the caller's PGPORT, PGHOST,
	# PGOPTIONS and MAKEFLAGS.
	set -m
	$as env -i PATH="$PATH" HOME="$work" TMPDIR="$work/tmp" LC_ALL=C.UTF-8 LEASELOCK_WORK="$work" \
		PG_CONFIG="${PG_CONFIG:-pg_config}" PG_CFLAGS="${PG_CFLAGS:-}" CI="${CI:-}" \
		LEASELOCK_SEED="${LEASELOCK_SEED:-}" LEASELOCK_HISTORY_SECONDS="${LEASELOCK_HISTORY_SECONDS:-}" \
		LEASELOCK_HISTORY_SEED="${LEASELOCK_HISTORY_SEED:-}" LEASELOCK_HOSTILE_CASES="${LEASELOCK_HOSTILE_CASES:-}" \
		LEASELOCK_ATTACK_SECONDS="${LEASELOCK_ATTACK_SECONDS:-}" LEASELOCK_CACHES="${LEASELOCK_CACHES:-}" \
		LEASELOCK_MCP_TOOLS="${LEASELOCK_MCP_TOOLS:-}" \
		OLD_PG_CONFIG="${OLD_PG_CONFIG:-}" \
		KNOBS="${KNOBS:-}" SUITES="${SUITES:-}" REGRESS="${REGRESS:-}" ISOLATION="${ISOLATION:-}" EVERY_LEVEL="${EVERY_LEVEL:-}" PROVE_TESTS="${PROVE_TESTS:-}" PROVE_JOBS="${PROVE_JOBS:-}" \
		"test/$1" </dev/null &
	inner=$!
	set +m
	wait "$inner"
	rc=$? inner=
	exit $rc
}

# ---- inner half -------------------------------------------------------------

# PostgreSQL finds its files relative to the running program, so a copy of the
# programs with links to the rest, under the same paths below the work folder, is
# an installation of its own.  copy_server PG_CONFIG: prints the pg_config of the copy.
copy_server() {
	local root="$work/server" dir
	for dir in --pkglibdir --sharedir; do
		dir=$("$1" $dir) || return
		mkdir -p "$root$dir" && cp -as "$dir/." "$root$dir/" || return
	done
	# of a server built from source, libpq is above those
	dir=$("$1" --libdir)
	case $("$1" --pkglibdir) in "$dir"/*) cp -as "$dir"/lib* "$root$dir/" || return ;; esac
	dir=$("$1" --bindir)
	mkdir -p "$root$dir" && cp -aL "$dir/." "$root$dir/" || return
	find "$root" -name 'leaselock*' -prune -exec rm -rf {} +
	for dir in --includedir --pkgincludedir --includedir-server --libdir; do
		dir=$("$1" $dir)
		[ -e "$root$dir" ] || { mkdir -p "$root${dir%/*}" && ln -s "$dir" "$root$dir"; } || return
	done
	dir=$("$1" --bindir)
	case $("$root$dir/pg_config" --bindir) in
		"$root"/*) say "$root$dir/pg_config" ;;
		*) say "the programs in $dir cannot be moved" >&2; return 1 ;;
	esac
}

private_server() {
	PG_CONFIG=$(copy_server "$PG_CONFIG") || return
	[ ! "${OLD_PG_CONFIG:-}" ] || OLD_PG_CONFIG=$(copy_server "$OLD_PG_CONFIG") || return
	bindir=$("$PG_CONFIG" --bindir)
	export PG_CONFIG OLD_PG_CONFIG
}

# build [with_llvm=no]: without bitcode, it takes half the time
build() {
	[ ! "${OLD_PG_CONFIG:-}" ] || (PG_CONFIG=$OLD_PG_CONFIG; build_one "$@") || return
	build_one "$@"
}

# Warnings in the server's headers are not ours, hence -isystem; its callbacks
# prescribe parameters, so an unused one is no fault.
build_flags() {
	local flags="-Wall -Wextra -Wno-unused-parameter -isystem $("$PG_CONFIG" --includedir-server) ${PG_CFLAGS:-}"
	[ "${CI:-}" != true ] || flags="$flags -Werror"
	say "$flags"
}

build_one() {
	local flags clang llvm=${1:-}
	flags=$(build_flags)
	clang=$(sed -n 's/^CLANG *= *//p' "$(dirname "$("$PG_CONFIG" --pgxs)")/../Makefile.global")
	command -v "${clang:-none}" >/dev/null && [[ $flags != *-fsanitize* ]] || llvm=with_llvm=no
	make -s $llvm clean checkver || return
	# another compiler finds other faults
	if [ "${CI:-}" = true ] && [ ! "$llvm" ]; then
		make -s with_llvm=no CC="$clang" PG_CFLAGS="$flags -Wno-unknown-warning-option -Wno-ignored-optimization-argument" all &&
			make -s with_llvm=no clean || return
	fi
	make -s $llvm PG_CFLAGS="$flags" all && PATH="$("$PG_CONFIG" --bindir):$PATH" make -s $llvm install
}
