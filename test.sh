#!/usr/bin/env bash
# Runs everything that is to pass before a change is taken. See TESTING.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

usage() {
	cat <<'EOF'
usage: test.sh [-long] [-h]

Installs what the tests need and is missing (Debian and Ubuntu, as root), then
checks the format, vets, builds, runs all tests with the race detector on real
ZooKeeper servers, and runs the tour.

  -long   the full number of rounds, and benchmarks; takes much longer, and
          writes a summary to results/summary.md
  -h      this text
EOF
}

long=
for arg in "$@"; do
	case $arg in
	-long | --long) long=1 ;;
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
tmp=

finish() {
	local status=$?
	trap - EXIT
	trap '' INT TERM HUP
	if [[ -n $group ]] && kill -TERM -- "-$group" 2>/dev/null; then
		for _ in {1..50}; do
			kill -0 -- "-$group" 2>/dev/null || break
			sleep 0.1
		done
		kill -KILL -- "-$group" 2>/dev/null || true
	fi
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

# The tests start servers from these jars, see internal/zktest/find.go.
jars=/usr/share/java

# missing prints the Debian packages that are needed and not there.
missing() {
	local java=java
	if [[ -n ${JAVA_HOME:-} ]]; then
		java=$JAVA_HOME/bin/java
	fi
	command -v "$java" >/dev/null || echo default-jre-headless
	if [[ -z ${ZOOKEEPER_CLASSPATH:-} ]]; then
		# The package zookeeper brings a desktop Java on top of these.
		[[ -e $jars/zookeeper.jar ]] || echo libzookeeper-java
		[[ -e $jars/netty-codec.jar ]] || echo libnetty-java # for TLS
		[[ -e $jars/slf4j-simple.jar ]] || echo libslf4j-java
	fi
	# The tests with clients in other languages, see internal/interop/install_test.go.
	command -v "${java}c" >/dev/null || echo default-jdk-headless
	[[ -n ${CURATOR_CLASSPATH:-} || -e $jars/curator-recipes.jar ]] || echo libcurator-recipes-java
	/usr/bin/python3 -c 'import kazoo' 2>/dev/null || python3 -c 'import kazoo' 2>/dev/null || echo python3-kazoo
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
		echo "test.sh: Java, ZooKeeper 3.8 or a C compiler is missing; on Debian these are the packages ${packages[*]}" >&2
		exit 1
	fi
	if ((EUID != 0)); then
		echo "test.sh: something is missing; run this as root:" >&2
		echo "${command[*]}" >&2
		exit 1
	fi
	export DEBIAN_FRONTEND=noninteractive
	# The lists can be missing, or too old for what they name to be there still.
	step "install ${packages[*]}" try_install "${command[@]}"
	mapfile -t packages < <(missing)
	if ((${#packages[@]} > 0)); then
		echo "test.sh: still missing after the installation: ${packages[*]}" >&2
		exit 1
	fi
}

try_install() {
	"$@" || {
		apt-get update
		"$@"
	}
}

# staticcheck is run at a version that accepts the toolchains in use.
staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.8.2

check_format() {
	local unformatted
	unformatted=$("$(go env GOROOT)/bin/gofmt" -l .)
	if [[ -n $unformatted ]]; then
		echo "gofmt would change:"
		echo "$unformatted"
		return 1
	fi
}

# verbose runs tests with -v. All that they say goes to a file, and on the
# screen stands what is not about tests that passed.
verbose() {
	local log=$1
	shift
	go test -v -count=1 -race "$@" 2>&1 | tee "$log" |
		sed -u -E '/^=== |^ *--- PASS: |^PASS$/d'
}

# module checks a module of its own beside the root.
module() {
	cd "$1"
	go vet ./...
	go run "$staticcheck" ./...
	go test -count=1 -race -timeout 20m ./...
}

# workspace builds from the root what users call from there.
workspace() {
	GOWORK='' go build -buildvcs=false -o "$tmp/bench" ./bench
}

# simulation plays the schedules that the race detector is too slow for.
simulation() {
	go test -v -count=1 -timeout 60m -run 'TestEveryRecipeInSimulation' . 2>&1 | tee "$1" |
		sed -u -E '/^=== |^ *--- PASS: |^PASS$/d'
}

benchmarks() {
	go test -run '^$' -bench . -benchmem -benchtime 2s -timeout 30m ./... 2>&1 | tee "$1"
}

# summary writes what a long run found, for TESTING.md.
summary() {
	local classpath=${ZOOKEEPER_CLASSPATH:-$jars/zookeeper.jar} java=${JAVA_HOME:+$JAVA_HOME/bin/}java
	echo "# The long test run"
	echo
	echo "- date: $(date -u '+%Y-%m-%d %H:%M') UTC"
	echo "- Go: $(go env GOVERSION), $(go env GOOS)/$(go env GOARCH), $(getconf _NPROCESSORS_ONLN) processors"
	echo "- ZooKeeper: $("$java" -cp "$classpath" org.apache.zookeeper.Version --full 2>/dev/null | sed 's/[-,].*//')"
	echo "- Java: $("$java" -version 2>&1 | head -n 1)"
	echo "- time: $SECONDS s"
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
	sed -n -E 's/^ *[a-z0-9_]+_test\.go:[0-9]+: figure: /- /p' "$@"
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
install_missing
tmp=$(mktemp -d "${TMPDIR:-/tmp}/coord-test-XXXXXX")
# The root module stands by itself; what is beside it in the workspace brings more.
export TMPDIR=$tmp CGO_ENABLED=1 COORD_REQUIRE_ZK=1 GOWORK=off

step "gofmt" check_format
step "go vet" go vet ./...
step "staticcheck" go run "$staticcheck" ./...
# Nothing built here needs a version stamp, for which git fails in a directory
# that belongs to another user.
step "go build" go build -buildvcs=false ./...
if [[ -n $long ]]; then
	export COORD_LONG=1
	mkdir -p results
	# The fault tests measure times, so nothing runs beside them.
	mapfile -t packages < <(go list -buildvcs=false ./... | grep -Ev '/internal/(faulttest|chaos)$')
	step "tests" verbose results/tests.txt -timeout 120m "${packages[@]}"
	step "fault tests" verbose results/faulttest.txt -timeout 120m -p 1 ./internal/faulttest ./internal/chaos
	step "benchmarks" benchmarks results/benchmarks.txt
else
	step "tests" go test -count=1 -race -timeout 10m ./...
fi
simulated=$tmp/simulation.txt
[[ -z $long ]] || simulated=results/simulation.txt
step "simulation" simulation "$simulated"
step "bench" module bench
step "oteltrace" module oteltrace
step "workspace" workspace
step "tour" go run ./examples/tour
if [[ -n $long ]]; then
	summary results/tests.txt results/faulttest.txt results/simulation.txt >"$tmp/summary.md"
	mv "$tmp/summary.md" results/summary.md
	echo "== summary: results/summary.md"
fi
echo "== all: ok, $SECONDS s"
