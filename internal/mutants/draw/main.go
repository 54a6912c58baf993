// Command draw makes mutants of the library at random and reports which of them the tests
// catch. A seed decides the choice. It is the counterpart of the list in internal/mutants,
// which holds defects that engineers thought of.
//
//	go run ./internal/mutants/draw -n 40 -seed 1
//
// A mutant negates a comparison, moves a bound, drops an operand, a condition, a call,
// an assignment or an error, and the like. All mutants are in one build, in an
// overlay of the sources (go build -overlay); the environment of a test turns one of
// them on. So a mutant costs no build.
//
// The tests of the root package and of the suites beside it run on memory, and only those
// that reach the changed place, the fast ones first. The first run measures which tests
// reach which place, which takes minutes; -dir keeps the result as long as the sources are
// unchanged. Mutants of memory are first tried with its own tests. Mutants of a backend with
// servers, and of an adapter, are tried with its own tests only, which for ZooKeeper need its jars. Of these tests
// it is measured which files of tests reach a place.
//
//	go run ./internal/mutants/draw -n 60 -seed 39 -in '^backend/(zookeeper|etcd)/' -dir /tmp/draw
//
// A survivor is either equivalent to the original, or a gap in the tests. Only a reader can
// find out which.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(log.Ltime)
	n := flag.Int("n", 40, "how many mutants")
	seed := flag.Uint64("seed", 1, "seed of the choice")
	in := flag.String("in", "", "regular expression for the names of files, relative to the root of the module")
	dir := flag.String("dir", "", "directory that keeps the measured reach of the tests between runs (default: none)")
	most := flag.Duration("most", time.Minute, "skip tests that take longer than this")
	only := flag.Bool("list", false, "print the mutants and do not run them")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := draw(ctx, *n, *seed, *in, *dir, *most, *only); err != nil {
		stop()
		log.Fatal(err)
	}
}

func draw(ctx context.Context, n int, seed uint64, in, dir string, most time.Duration, only bool) error {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return err
	}
	match, err := regexp.Compile(in)
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "coord-mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	if dir == "" {
		dir = scratch
	}
	b := &build{root: filepath.Dir(strings.TrimSpace(string(out))), dir: scratch}
	if err := b.find(match); err != nil {
		return err
	}
	drawn := order(b.sites, seed)[:min(n, len(b.sites))]
	if only {
		for _, s := range drawn {
			fmt.Println(s)
		}
		return nil
	}
	log.Printf("%d sites", len(b.sites))
	if err := b.compile(ctx); err != nil {
		return err
	}
	log.Printf("%d sites build", len(b.sites))
	r, err := loadReach(ctx, b, dir)
	if err != nil {
		return err
	}
	t := &trial{build: b, reach: r, most: most, broken: make(map[string]bool)}
	count := make(map[verdict]int)
	for _, s := range drawn {
		if !slices.Contains(b.sites, s) {
			count[unbuilt]++
			fmt.Printf("%-8s %s\n", unbuilt, s)
			continue
		}
		began := time.Now()
		v, by := t.try(ctx, s)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		count[v]++
		fmt.Printf("%-8s %s  [%s, %v]\n", v, s, by, time.Since(began).Round(time.Second))
	}
	fmt.Printf("figure: seed %d, %d sites: %d mutants caught, %d did not end, %d survived, %d do not build\n",
		seed, len(b.sites), count[caught], count[endless], count[survived], count[unbuilt])
	return nil
}

// verdict is the result for a mutant.
type verdict string

const (
	caught   verdict = "caught"
	survived verdict = "SURVIVED"
	endless  verdict = "endless" // the tests did not end, which counts as a failure
	unbuilt  verdict = "no build"
)

// trial tries mutants one after the other.
type trial struct {
	build  *build
	reach  *reach
	most   time.Duration
	broken map[string]bool // tests that fail in this build without a mutant
}

// try runs tests until one fails. by is the test that failed, or a description of the tests
// that ran.
func (t *trial) try(ctx context.Context, s *site) (v verdict, by string) {
	pkg, tries := path.Dir(s.file), suites
	if slices.Contains(served, pkg) {
		tries = []string{pkg}
	} else if pkg != "." && t.build.hasTests(pkg) {
		if v, by := judge(t.build.run(ctx, pkg, s.number, nil, 5*time.Minute)); v != survived {
			return v, by
		}
	}
	ran := 0
	for _, batch := range t.reach.tests(s.number, t.most) {
		for _, suite := range tries {
			v, by, n := t.batch(ctx, s, suite, batch)
			if v != survived {
				return v, by
			}
			ran += n
		}
	}
	if ran == 0 {
		return survived, "no test that is run reaches it"
	}
	return survived, fmt.Sprintf("%d tests run", ran)
}

// batch runs those of the tests that are in a suite, and returns their number.
func (t *trial) batch(ctx context.Context, s *site, suite string, batch []string) (v verdict, by string, n int) {
	for {
		limit := 2 * time.Minute
		var names []string
		for _, test := range batch {
			if path.Dir(test) == suite && !t.broken[test] {
				names = append(names, path.Base(test))
				limit += 4 * t.reach.Took[test]
			}
		}
		if len(names) == 0 {
			return survived, "", 0
		}
		v, by := judge(t.build.run(ctx, suite, s.number, names, limit))
		if v != survived {
			// The tests must not fail by themselves.
			blamed := names
			if top, _, _ := strings.Cut(by, "/"); slices.Contains(names, top) {
				blamed = []string{top}
			}
			if alone, by := judge(t.build.run(ctx, suite, 0, blamed, 2*limit)); alone != survived && ctx.Err() == nil {
				if top, _, _ := strings.Cut(by, "/"); slices.Contains(blamed, top) {
					blamed = []string{top}
				}
				log.Printf("%s: %q fail without any mutant (%s), and are skipped", suite, blamed, by)
				for _, name := range blamed {
					t.broken[path.Join(suite, name)] = true
				}
				continue
			}
		}
		return v, by, len(names)
	}
}

func goTool(ctx context.Context, root string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -buildvcs=false"))
	return cmd.CombinedOutput()
}

// runTests runs tests of a binary with a mutant: 0 for none, -1 for none and to record the
// sites that they reach, in which case a failure does not end the run. It runs all tests if
// none is named, except those whose names skip matches.
func runTests(ctx context.Context, bin, dir string, mutant int, names []string, skip string, limit time.Duration, env ...string) ([]byte, error) {
	// The binary ends itself at the limit, unless the mutant prevents that.
	ctx, cancel := context.WithTimeout(ctx, limit+30*time.Second)
	defer cancel()
	args := []string{"-test.failfast", "-test.timeout=" + limit.String()}
	if mutant < 0 {
		args[0] = "-test.v"
	}
	if names != nil {
		args = append(args, "-test.run=^("+strings.Join(names, "|")+")$")
	}
	if skip != "" {
		args = append(args, "-test.skip="+skip)
	}
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "COORD_LONG=", "COORD_MUTANT="+strconv.Itoa(mutant)), env...)
	cmd.WaitDelay = 5 * time.Second
	return cmd.CombinedOutput()
}

var failed = regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)`)

// judge derives the verdict on a mutant from the output of a run.
func judge(out []byte, err error) (verdict, string) {
	if err == nil {
		return survived, ""
	}
	text := string(out)
	var by string
	for _, m := range failed.FindAllStringSubmatch(text, -1) {
		by = m[1] // the last is the deepest
	}
	switch {
	case by != "":
		return caught, by
	case strings.Contains(text, "test timed out"):
		return endless, "limit"
	case strings.Contains(text, "panic:") || strings.Contains(text, "fatal error:"):
		return caught, "panic"
	case strings.Contains(text, "found unexpected goroutines"):
		return caught, "goroutine leaked"
	}
	return caught, tail(out)
}

func tail(out []byte) string { return string(out[max(0, len(out)-300):]) }
