#!/usr/bin/env bash
# Runs everything that must pass before a change is merged. See TESTING.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

usage() {
	cat <<'EOF'
usage: test.sh [-long] [-vuln] [-h]

Installs what the tests need and is missing (Debian and Ubuntu, as root), then
checks the format, vets, runs staticcheck, all tests on real servers, and the tour.
The heaviest suites take turns: each run draws one, or COORD_TURN chooses it:
storm-zookeeper, storm-etcd, storm-postgres, processes-zookeeper, queues-zookeeper,
processes-etcd, bench.

  -long   the full number of rounds, benchmarks, and an hour of fuzzing the
          codec (COORD_FUZZ says how many seconds); takes much longer, and
          writes a summary to results/summary.md
  -vuln   nothing but the search for known vulnerabilities, which -long includes;
          fails if the vulnerability database cannot be reached (COORD_VULNDB is the
          URL of another one)
  -h      this text
EOF
}

long=
vuln=
for arg in "$@"; do
	case $arg in
	-long | --long) long=1 ;;
	-vuln | --vuln) vuln=1 ;;
	-h | --help)
		usage
		exit 0
		;;
	*)
		echo "test.sh: unknown argument $arg" >&2
		usage >&2
		exit 2
		;;
	esac
done

# Each step runs in a process group of its own, so that nothing of it is left
# when this script is interrupted.
set -m
group=
beside=() # the groups of the steps that run beside others
tmp=

# end ends a process group, if there is one.
end() {
	[[ -n $1 ]] && kill -TERM -- "-$1" 2>/dev/null || return 0
	for _ in {1..50}; do
		kill -0 -- "-$1" 2>/dev/null || return 0
		sleep 0.1
	done
	kill -KILL -- "-$1" 2>/dev/null || true
}

finish() {
	local status=$?
	trap - EXIT
	trap '' INT TERM HUP
	end "$group"
	for group in "${beside[@]}"; do
		end "$group"
	done
	if [[ -n $tmp ]]; then
		chmod -R u+w "$tmp" 2>/dev/null || true
		rm -rf "$tmp"
	fi
	if ((status != 0)); then
		echo "test.sh: FAILED after $SECONDS s" >&2
	fi
	exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# step runs a command under a name, and prints how long it took.
step() {
	local name=$1 from=$SECONDS status=0
	shift
	echo "== $name"
	"$@" </dev/null &
	group=$!
	wait "$group" || status=$?
	if ((status != 0)); then
		echo "== $name: FAILED (exit status $status, $((SECONDS - from)) s)" >&2
		exit 1
	fi
	group=
	echo "== $name: ok, $((SECONDS - from)) s"
}

# start begins a step that runs beside the next steps, up to join. join prints its output, so
# that it does not mix with the output of the other steps.
start() {
	local i=${#beside[@]}
	beside_name[i]=$1 beside_from[i]=$SECONDS
	shift
	echo "== ${beside_name[i]}: begun, beside what follows"
	"$@" </dev/null >"$tmp/beside$i.txt" 2>&1 &
	beside[i]=$!
}

join() {
	local i status
	for i in "${!beside[@]}"; do
		status=0
		wait "${beside[i]}" || status=$?
		beside[i]=
		cat "$tmp/beside$i.txt"
		if ((status != 0)); then
			echo "== ${beside_name[i]}: FAILED (exit status $status, $((SECONDS - beside_from[i])) s)" >&2
			exit 1
		fi
		echo "== ${beside_name[i]}: ok, $((SECONDS - beside_from[i])) s"
	done
}

# The tests start servers from these jars, see internal/zktest/find.go.
jars=/usr/share/java

# missing prints the Debian packages that are needed and not there.
missing() {
	local java=java
	if [[ -n ${JAVA_HOME:-} ]]; then
		java=$JAVA_HOME/bin/java
	fi
	command -v "$java" >/dev/null || echo default-jre-headless
	if [[ -z ${ZOOKEEPER_CLASSPATH:-}${ZOOKEEPER_HOME:-} ]]; then
		# The package zookeeper brings a desktop Java on top of these.
		[[ -e $jars/zookeeper.jar ]] || echo libzookeeper-java
		[[ -e $jars/netty-codec.jar ]] || echo libnetty-java # for TLS
		[[ -e $jars/slf4j-simple.jar ]] || echo libslf4j-java
	fi
	# The tests with clients in other languages, see internal/interop/install_test.go.
	command -v "${java}c" >/dev/null || echo default-jdk-headless
	[[ -n ${CURATOR_CLASSPATH:-} || -e $jars/curator-recipes.jar ]] || echo libcurator-recipes-java
	/usr/bin/python3 -c 'import kazoo' 2>/dev/null || python3 -c 'import kazoo' 2>/dev/null || echo python3-kazoo
	# See backend/postgres/pgtest/find.go.
	[[ -n ${COORD_POSTGRES:-} ]] || command -v postgres >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || echo postgresql
	# See fence/maria_test.go.
	command -v mariadbd >/dev/null || [[ -x /usr/sbin/mariadbd ]] || echo mariadb-server-core
	command -v my_print_defaults >/dev/null || echo mariadb-client-core # mariadb-install-db runs it
	# See backend/postgres/pooler_test.go.
	command -v pgbouncer >/dev/null || [[ -x /usr/sbin/pgbouncer ]] || echo pgbouncer
	command -v tmux >/dev/null || echo tmux # a terminal for the tests of coordctl top
	# The browser for the page of coordctl ui, see cmd/coordctl/internal/ui/chromium_test.go.
	command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || echo chromium
	# The race detector needs cgo.
	if ! echo '#include <stdlib.h>' | ${CC:-gcc} -E -x c - >/dev/null 2>&1; then
		echo gcc
		echo libc6-dev
	fi
}

install_missing() {
	local packages
	mapfile -t packages < <(missing)
	if ((${#packages[@]} == 0)); then
		return
	fi
	local command=(apt-get install -y --no-install-recommends "${packages[@]}")
	if ! command -v apt-get >/dev/null; then
		echo "test.sh: Java, ZooKeeper 3.8, PostgreSQL, PgBouncer, MariaDB, tmux, Chromium or a C compiler is missing; on Debian these are the packages ${packages[*]}" >&2
		exit 1
	fi
	if ((EUID != 0)); then
		echo "test.sh: something is missing; run this as root:" >&2
		echo "${command[*]}" >&2
		exit 1
	fi
	export DEBIAN_FRONTEND=noninteractive
	# The lists of packages can be missing, or name versions that are no longer on the mirror:
	# try_install then updates them.
	step "install ${packages[*]}" try_install "${command[@]}"
	mapfile -t packages < <(missing)
	if ((${#packages[@]} > 0)); then
		echo "test.sh: still missing after the installation: ${packages[*]}" >&2
		exit 1
	fi
}

# try_install keeps the packages postgresql and pgbouncer from starting servers of their own: the
# first makes none, and no service is started that an installation brings, nor pgbouncer at the next boot.
try_install() (
	settings=/etc/postgresql-common/createcluster.d
	policy=/usr/sbin/policy-rc.d
	mkdir -p "$settings"
	made=("$settings/coord-test.conf")
	trap 'rm -f "${made[@]}"' EXIT
	echo 'create_main_cluster = off' >"$settings/coord-test.conf"
	if [[ ! -e $policy ]]; then
		made+=("$policy")
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod a+x "$policy"
	fi
	"$@" || {
		apt-get update
		"$@"
	}
	[[ " $* " != *" pgbouncer "* ]] || update-rc.d pgbouncer disable
)

# staticcheck is run at a version that accepts the toolchains in use.
staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.8.2

# govulncheck is run at a version that accepts the toolchains in use.
govulncheck=golang.org/x/vuln/cmd/govulncheck@v1.9.0

# vulnerabilities looks for calls of functions with known vulnerabilities in all modules. If
# the vulnerability database cannot be reached, it leaves that reason in the file $1.
vulnerabilities() {
	local module status=0 workspace
	GOBIN=$tmp go install "$govulncheck"
	for module in $(sed -n 's/^\t\(\.[^ ]*\)$/\1/p' go.work); do
		workspace=off
		[[ $module != ./cmd/coordctl ]] || workspace=
		echo "-- $module"
		(cd "$module" && GOWORK=$workspace "$tmp/govulncheck" ${COORD_VULNDB:+-db "$COORD_VULNDB"} ./... 2>&1) | tee "$tmp/vuln.txt" || status=1
		if grep -q 'fetching vulnerabilities' "$tmp/vuln.txt"; then
			grep 'fetching vulnerabilities' "$tmp/vuln.txt" >"$1"
			echo "-- NOT CHECKED: the vulnerability database cannot be reached"
			return 0
		fi
	done
	return "$status"
}

# look_up runs vulnerabilities, and sets unchecked if there was no database.
look_up() {
	rm -f "$tmp/unchecked.txt"
	step "known vulnerabilities" vulnerabilities "$tmp/unchecked.txt"
	unchecked=
	[[ ! -e $tmp/unchecked.txt ]] || unchecked="known vulnerabilities were NOT CHECKED: $(cat "$tmp/unchecked.txt")"
}

# scratch prints the directory for the files of the tests: in memory, if 6 GiB of it are free. The tests make and
# delete some hundred thousand files, and before ext4 makes one it examines each inode that was deleted lately: that
# alone took a fifth of the processor time.
scratch() {
	local memory=/dev/shm room=$((6 << 20)) free left try
	if [[ -z ${TMPDIR:-} && -w $memory && -r /proc/meminfo ]]; then
		free=$(df -kP "$memory" | awk 'NR == 2 { print $4 }')
		left=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
		try=$(mktemp "$memory/coord-test-XXXXXX")
		chmod u+x "$try"
		if ((free >= room && left >= room)) && "$try" 2>/dev/null; then # not mounted noexec
			echo "$memory"
		fi
		rm -f "$try"
	fi
}

check_format() {
	local unformatted
	unformatted=$("$(go env GOROOT)/bin/gofmt" -l .)
	if [[ -n $unformatted ]]; then
		echo "gofmt would change:"
		echo "$unformatted"
		return 1
	fi
}

# verbose runs tests with -v. The whole output goes to a file; the screen does not show the
# tests that passed.
verbose() {
	local log=$1
	shift
	go test -v -count=1 -vet=off -race "$@" 2>&1 | tee "$log" |
		sed -u -E '/^=== |^ *--- PASS: |^PASS$/d'
}

# packaged runs tests on the ZooKeeper of Debian's package, whatever ZOOKEEPER_CLASSPATH says.
packaged() (
	unset ZOOKEEPER_CLASSPATH
	verbose "$@"
)

# tidy prints what `go mod tidy` would change in a module. At its first run Go downloads the
# modules that the tests of the dependencies need.
tidy() {
	local module
	for module in . backend/etcd backend/postgres bench examples fence gocronlock grpcresolver oteltrace ${long:+docs/moving}; do
		(cd "$module" && go mod tidy -diff)
	done
	# This module has no replace directives; see its go.mod.
	cp cmd/coordctl/go.mod "$tmp/coordctl.mod"
	cp cmd/coordctl/go.sum "$tmp/coordctl.sum"
	go mod edit -replace github.com/go-coord/coord="$PWD" -replace github.com/go-coord/coord/backend/etcd="$PWD/backend/etcd" \
		-replace github.com/go-coord/coord/backend/postgres="$PWD/backend/postgres" "$tmp/coordctl.mod"
	(cd cmd/coordctl && go mod tidy -diff -modfile "$tmp/coordctl.mod")
}

# vet vets all modules, one after the other, so that their packages are compiled once for what runs side
# by side afterwards: those of the root with the race detector, as its tests are. Two packages have
# files that -race leaves out.
vet() {
	local module
	go vet -race ./...
	go vet ./internal/model ./internal/coordtest
	for module in backend/etcd backend/postgres bench examples fence gocronlock grpcresolver oteltrace ${long:+docs/moving}; do
		(cd "$module" && go vet ./...)
	done
	(cd cmd/coordctl && GOWORK='' go vet ./...)
}

# module runs staticcheck and the tests of a module other than the root, without the race
# detector: the tests of the root run the library with it. Its second argument is how many tests of a package run at a
# time, and its third how many packages: more than usual where they mostly wait.
module() (
	cd "$1"
	go run "$staticcheck" ./...
	go test -count=1 -vet=off -timeout 20m -skip "$calm" -parallel "${2:-$parallel}" ${3:+-p "$3"} ./...
)

# The heaviest suites take turns: each run of the short form draws one of them, and leaves the others out. The storm of
# internal/chaos takes a minute and as much processor time on each service, and the processes and servers that
# internal/faulttest kills take more. The test of bench starts all peers.
declare -A heavy=(
	[storm-zookeeper]='TestEveryRecipeStandsAllFaults'
	[storm-etcd]='TestEveryRecipeStandsAllFaultsOnEtcd'
	[storm-postgres]='TestChaos'
	[processes-zookeeper]='TestTwoProcesses|TestACacheIsExactAfterChurnAndKills|TestATransactionOfProcessesSurvivesAFaultAtEveryRequest'
	[queues-zookeeper]='TestAFleetPassesItemsThroughQueuesUnderFaults|TestItemsPassAQueueBetweenProcesses'
	[bench]='TestEachComparedQueueYieldsItsFigures'
	[processes-etcd]='TestProcessesAreKilledPausedAndCutOffOnEtcd|TestProgramsOnEtcd|TestEveryRecipeStandsAFaultAtEachOfItsRequestsOnEtcd'
)

# draw chooses the suite that has its turn, and sets calm to the pattern of the tests that are left out.
draw() {
	local suites suite
	mapfile -t suites < <(printf '%s\n' "${!heavy[@]}" | sort)
	turn=${COORD_TURN:-${suites[RANDOM % ${#suites[@]}]}}
	if [[ -z ${heavy[$turn]:-} ]]; then
		echo "test.sh: COORD_TURN=$turn is none of ${suites[*]}" >&2
		exit 2
	fi
	calm=
	for suite in "${suites[@]}"; do
		[[ $suite == "$turn" ]] || calm+="${calm:+|}${heavy[$suite]}"
	done
	calm="^($calm)\$"
}

# archive writes the classes of ZooKeeper's servers into the file $1. Servers start without it if Java cannot write it.
archive() {
	go run ./internal/zktest/archive "$1" || rm -f "$1"
}

# workspace runs the commands that users call from the root.
workspace() {
	GOWORK='' go build -buildvcs=false -o "$tmp/bench" ./bench
	GOWORK='' go run ./examples/tour
}

# plain runs the simulation and the models, which the race detector is too slow for, and counts allocations, to which
# it adds its own, and the requests of many calls. Nothing in it waits, so it takes the processor time that the tests
# with servers leave.
plain() {
	nice -n 3 go test -v -count=1 -vet=off -run 'KeepsItsAllocations$|Cost' -skip 'OnARealServer$' ./internal/recipetest 2>&1 | tee "$1" |
		sed -u -E '/^=== |^ *--- PASS: |^PASS$/d'
	nice -n 3 go test -v -count=1 -vet=off -timeout 60m ./internal/simulation 2>&1 | tee -a "$1" |
		sed -u -E '/^=== |^ *--- PASS: |^PASS$/d'
	nice -n 3 go test ${long:+-v} -count=1 -vet=off -timeout 60m ./internal/model 2>&1 | tee -a "$1" |
		sed -u -E '/^=== |^ *--- PASS: |^PASS$/d'
}

# checks runs the simulation, the models, the tests of sources, and staticcheck.
checks() {
	plain "$1"
	# These packages parse sources and run the go command, or start no goroutine. The race detector would make
	# them up to ten times slower, and finds nothing in them.
	nice -n 3 go test -count=1 -vet=off -timeout 20m "${raceless[@]}"
	# staticcheck compiles all packages and tests. With -race it finds them compiled by the tests of
	# the root. Two packages have files that -race leaves out, so they are checked once more.
	nice -n 3 go run -exec "env 'GOFLAGS=-race $(go env GOFLAGS)'" "$staticcheck" ./...
	nice -n 3 go run "$staticcheck" ./internal/model ./internal/coordtest
}

# small runs the tests of the small modules, and the tour. They mostly wait.
small() {
	module examples "$parallel" 4
	module fence
	module gocronlock
	module grpcresolver
	module oteltrace
	GOWORK='' module cmd/coordctl 8
	workspace
	module bench
}

# These packages take faults, hostile clients, foreign processes and random scripts to real servers. Most of their
# processor time would be the race detector's. The packages of raced run the same code with it.
faults=(./backend/backendtest ./internal/chaos ./internal/faulttest ./internal/hostile ./internal/interop ./internal/sweep)

# etcd_and_checks runs beside the tests of the root.
etcd_and_checks() {
	module backend/etcd 8
	checks "$1"
}

# raced lists the packages that run with the race detector, the slowest first: they mostly wait, and the
# others run meanwhile.
raced() {
	go list -buildvcs=false ./... >"$tmp/packages.txt"
	grep -E '/(internal/recipetest|backend/zookeeper)$' "$tmp/packages.txt" | sort -r
	grep -Ev '/internal/(recipetest|chaos|faulttest|hostile|interop|sweep|simulation|assign|mutants|readme|release|schedule)$|/backend/(zookeeper|backendtest)$' "$tmp/packages.txt"
}

benchmarks() {
	go test -run '^$' -bench . -benchmem -benchtime 2s -timeout 30m ./... 2>&1 | tee "$1"
}

# targets lists the fuzz targets of packages, as lines of a package and a name.
targets() {
	go test -vet=off -list '^Fuzz' "$@" | awk '
		/^Fuzz/ { names[n++] = $1 }
		/^ok/   { for (i = 0; i < n; i++) print $2, names[i]; n = 0 }'
}

# expired reports whether a run of a fuzz target failed only because its time was over: Go before
# 1.27 sometimes reports that as a failure (go.dev/issue/75804). A real failure names its input.
expired() {
	grep -qx ' *context deadline exceeded' "$1" && ! grep -Eq 'Failing input|seed corpus' "$1"
}

# fuzz runs each fuzz target of the packages. The targets of the ZooKeeper codec share COORD_FUZZ
# seconds, and each other target has a sixtieth of them.
fuzz() {
	local log=$1 package target codec seconds
	shift
	: >"$log"
	targets "$@" >"$tmp/targets.txt"
	codec=$(grep -c '/backend/zookeeper ' "$tmp/targets.txt")
	while read -r package target; do
		seconds=$((COORD_FUZZ / 60 + 1))
		[[ $package != */backend/zookeeper ]] || seconds=$((COORD_FUZZ / codec + 1))
		go test -vet=off -run '^$' -fuzz "^$target\$" -fuzztime "${seconds}s" "$package" </dev/null >"$tmp/fuzz.txt" 2>&1 ||
			expired "$tmp/fuzz.txt" || {
			cat "$tmp/fuzz.txt"
			return 1
		}
		echo "figure: $package $target: $(grep '^fuzz: elapsed' "$tmp/fuzz.txt" | tail -n 1)" | tee -a "$log"
	done <"$tmp/targets.txt"
}

# summary prints the results of a long run.
summary() {
	local classpath=${ZOOKEEPER_CLASSPATH:-$jars/zookeeper.jar} java=${JAVA_HOME:+$JAVA_HOME/bin/}java
	echo "# The long test run"
	echo
	echo "- date: $(date -u '+%Y-%m-%d %H:%M') UTC"
	echo "- Go: $(go env GOVERSION), $(go env GOOS)/$(go env GOARCH), $(getconf _NPROCESSORS_ONLN) processors"
	echo "- ZooKeeper: $("$java" -cp "$classpath" org.apache.zookeeper.Version --full 2>/dev/null | sed 's/[-,].*//')"
	echo "- Java: $("$java" -version 2>&1 | head -n 1)"
	echo "- time: $SECONDS s"
	echo "- known vulnerabilities: ${unchecked:-none found}"
	echo
	echo "## Tests"
	echo
	awk '
		/^--- PASS: /  { passed++ }
		/^ *--- PASS: / { all++ }
		/^ *--- SKIP: / { skipped++ }
		/^ok /         { printf "- %s: %d tests, %d with subtests, %d skipped, %s\n", $2, passed, all, skipped, $3; passed = all = skipped = 0 }
	' "$@"
	echo
	echo "## Figures"
	echo
	sed -n -E 's/^( *[a-z0-9_]+_test\.go:[0-9]+: )?figure: /- /p' "$@"
	echo
	echo "## Benchmarks"
	echo
	echo '```'
	grep -E '^(Benchmark|cpu:|pkg:)' results/benchmarks.txt || echo "none"
	echo '```'
}

if ! command -v go >/dev/null; then
	echo "test.sh: Go is missing; see https://go.dev/doc/install" >&2
	exit 1
fi
if [[ -n $vuln ]]; then
	tmp=$(mktemp -d "${TMPDIR:-/tmp}/coord-test-XXXXXX")
	look_up
	if [[ -n $unchecked ]]; then
		echo "test.sh: $unchecked" >&2
		exit 1
	fi
	exit 0
fi
install_missing
memory=
[[ -n $long ]] || memory=$(scratch) # the long form takes the disk
tmp=$(mktemp -d "${memory:-${TMPDIR:-/tmp}}/coord-test-XXXXXX")
chmod a+x "$tmp" # PostgreSQL runs as another user than root
# GOWORK=off: the root module is tested with its own requirements, not with those of the workspace.
export TMPDIR=$tmp CGO_ENABLED=1 COORD_REQUIRE_ZK=1 GOWORK=off
# With -trimpath another clone need not compile again.
# Without symbols and debug information a test binary is compiled and linked in less time; stack
# traces need neither.
export GOFLAGS="-trimpath -ldflags=-s -gcflags=all=-dwarf=false ${GOFLAGS:-}"
# Compilers and tests end soon, so little garbage is worth collecting: this saves a fifth of their
# processor time.
export GOGC=${GOGC:-400}
COORD_FUZZ=${COORD_FUZZ:-3600}
# Tests of one package that run at a time. Most of them wait, so there are more than processors.
parallel=$((2 * $(getconf _NPROCESSORS_ONLN)))
# The packages that run without the race detector, beside the others.
raceless=(./internal/assign ./internal/mutants ./internal/readme ./internal/release ./internal/schedule)
calm='^$' # the long form leaves nothing out

step "gofmt" check_format
step "go mod tidy" tidy
# go vet checks the types of all packages, so there is no step that builds them. The tests below
# run with -vet=off.
step "go vet" vet
if [[ -n $long ]]; then
	export COORD_LONG=1
	mkdir -p results
	step "staticcheck" go run "$staticcheck" ./...
	look_up
	# The fault tests measure times, so nothing runs beside them.
	mapfile -t packages < <(go list -buildvcs=false ./... | grep -Ev '/internal/(faulttest|chaos)$')
	step "tests" verbose results/tests.txt -timeout 120m "${packages[@]}"
	step "fault tests" verbose results/faulttest.txt -timeout 120m -p 1 ./internal/faulttest ./internal/chaos
	summarized=(results/tests.txt results/faulttest.txt)
	if [[ -n ${ZOOKEEPER_CLASSPATH:-} && -e $jars/zookeeper.jar ]]; then
		step "tests on the packaged ZooKeeper" packaged results/packaged.txt -timeout 120m "${packages[@]}"
		summarized+=(results/packaged.txt)
	fi
	step "benchmarks" benchmarks results/benchmarks.txt
	step "simulation and models" plain results/simulation.txt
	step "etcd" module backend/etcd
	step "postgres" module backend/postgres 8
	step "bench" module bench
	step "examples" module examples
	step "fence" module fence
	step "gocronlock" module gocronlock
	step "grpcresolver" module grpcresolver
	step "oteltrace" module oteltrace
	step "moving" module docs/moving
	GOWORK='' step "coordctl" module cmd/coordctl
	step "workspace and tour" workspace
	step "fuzz" fuzz results/fuzz.txt ./...
	summary "${summarized[@]}" results/simulation.txt results/fuzz.txt >"$tmp/summary.md"
	mv "$tmp/summary.md" results/summary.md
	echo "== summary: results/summary.md"
else
	# A third of the processor time is the servers'. With this setting the thread that finds
	# connections ready also reads and writes them, instead of handing each to another thread.
	# The long form has ZooKeeper's default.
	export COORD_SERVER_ARGS="${COORD_SERVER_ARGS:+$COORD_SERVER_ARGS }-Dzookeeper.nio.numWorkerThreads=0"
	# A start of a server then takes a third less processor time.
	step "archive of the servers' classes" archive "$tmp/zookeeper.jsa"
	[[ ! -e $tmp/zookeeper.jsa ]] || COORD_SERVER_ARGS+=" -XX:SharedArchiveFile=$tmp/zookeeper.jsa"
	# At its end a program with the race detector sleeps for a second. Races of goroutines that outlive all tests of a
	# package are left to the long form.
	export GORACE="atexit_sleep_ms=0 ${GORACE:-}"
	# Of the tests of recipes on ZooKeeper one of twelve, as on etcd and PostgreSQL: chosen anew in each run. All
	# run in memory.
	export COORD_SHARE=${COORD_SHARE:-12}
	# Each of the first three steps takes most of a processor. With more of them at a time, sessions end and
	# leaders change for want of the processor, and the tests take longer.
	draw
	echo "== it is the turn of $turn (COORD_TURN)"
	start "faults" go test -count=1 -vet=off -timeout 30m -skip "$calm" -p 1 -parallel "$parallel" "${faults[@]}"
	start "etcd, simulation, models and staticcheck" etcd_and_checks "$tmp/simulation.txt"
	start "small modules and tour" small
	mapfile -t packages < <(raced)
	step "tests" go test -count=1 -vet=off -race -timeout 30m -p 2 -parallel "$parallel" "${packages[@]}"
	step "postgres" module backend/postgres 8
	join
fi
if [[ -n ${unchecked:-} ]]; then
	echo "== all: ok, $SECONDS s; but $unchecked"
else
	echo "== all: ok, $SECONDS s"
fi
