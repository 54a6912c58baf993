// Command draw makes mutants of the library at random and reports which of them
// the tests catch. A seed decides the choice. It is the counterpart of the list in
// internal/mutants: there stand the defects that engineers thought of, here those
// that nobody chose.
//
//	go run ./internal/mutants/draw -n 40 -seed 1
//
// A mutant swaps an operator, drops an operand, a condition, a call, an assignment
// or an error. It exists in an overlay of the build only (go build -overlay). A
// mutant that does not build is replaced by the next one of the draw.
//
// The tests of the root package run on memory, and of them only those that reach
// the changed line, the quick ones first. The first run measures which those are,
// which takes minutes; -dir keeps the result. Mutants of a backend are tried on the
// backend's own tests first, which for ZooKeeper need its jars.
//
// A survivor is either equivalent to the original, or a hole in the tests. Nothing
// but a reader can tell which.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(log.Ltime)
	n := flag.Int("n", 40, "how many mutants")
	seed := flag.Uint64("seed", 1, "of the choice")
	in := flag.String("in", "", "a regular expression that names of files match, from the root of the module")
	dir := flag.String("dir", "", "where coverage is kept between runs (default: nowhere)")
	only := flag.Bool("list", false, "print the draw, and try nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := draw(ctx, *n, *seed, *in, *dir, *only); err != nil {
		stop()
		log.Fatal(err)
	}
}

func draw(ctx context.Context, n int, seed uint64, in, dir string, only bool) error {
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	match, err := regexp.Compile(in)
	if err != nil {
		return err
	}
	var all []site
	for _, pattern := range []string{"*.go", "backend/memory/*.go", "backend/zookeeper/*.go"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return err
		}
		for _, f := range files {
			name, err := filepath.Rel(root, f)
			if err != nil {
				return err
			}
			name = filepath.ToSlash(name)
			if strings.HasSuffix(name, "_test.go") || !match.MatchString(name) {
				continue
			}
			src, err := os.ReadFile(f)
			if err != nil {
				return err
			}
			sites, err := sitesOf(name, src)
			if err != nil {
				return err
			}
			all = append(all, sites...)
		}
	}
	drawn := order(all, seed)
	if only {
		for _, s := range drawn[:min(n, len(drawn))] {
			fmt.Println(s)
		}
		return nil
	}
	scratch, err := os.MkdirTemp("", "coord-mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	if dir == "" {
		dir = scratch
	}
	r, err := loadReach(ctx, root, dir)
	if err != nil {
		return err
	}
	t := &trial{root: root, dir: scratch, reach: r}
	count := make(map[verdict]int)
	for _, s := range drawn {
		if count[caught]+count[survived]+count[endless] == n {
			break
		}
		began := time.Now()
		v, by := t.try(ctx, s)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		count[v]++
		fmt.Printf("%-8s %s  [%s, %v]\n", v, s, by, time.Since(began).Round(time.Second))
	}
	fmt.Printf("figure: seed %d, of %d sites: %d caught, %d did not end, %d survived, %d did not build\n",
		seed, len(all), count[caught], count[endless], count[survived], count[unbuilt])
	return nil
}

func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", err
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
}

// verdict is what became of a mutant.
type verdict string

const (
	caught   verdict = "caught"
	survived verdict = "SURVIVED"
	endless  verdict = "endless" // the tests did not end, which ./test.sh would find too
	unbuilt  verdict = "no build"
)

// trial tries mutants one after the other.
type trial struct {
	root, dir string
	reach     *reach
}

// try builds a mutant and runs tests until one fails. by is the test that failed,
// or what was run.
func (t *trial) try(ctx context.Context, s site) (v verdict, by string) {
	overlay, err := t.overlay(s)
	if err != nil {
		return unbuilt, err.Error()
	}
	ran := 0
	if pkg := packageOf(s.file); pkg != "./." {
		bin, ok := t.build(ctx, overlay, pkg)
		if !ok {
			return unbuilt, ""
		}
		v, by := judge(runTests(ctx, bin, filepath.Join(t.root, pkg), nil, 5*time.Minute))
		if v != survived || strings.HasSuffix(pkg, "/zookeeper") {
			return v, by
		}
		ran++
	}
	quick, slow := t.reach.tests(s.file, s.line)
	if len(quick)+len(slow) == 0 {
		return survived, "no test of the root package comes here"
	}
	bin, ok := t.build(ctx, overlay, ".")
	if !ok {
		return unbuilt, ""
	}
	for _, tests := range [][]string{quick, slow} {
		if len(tests) == 0 {
			continue
		}
		limit := time.Minute
		for _, name := range tests {
			limit += 4 * t.reach.Took[name]
		}
		if v, by := judge(runTests(ctx, bin, t.root, tests, limit)); v != survived {
			return v, by
		}
		ran += len(tests)
	}
	return survived, fmt.Sprintf("%d tests run", ran)
}

// overlay writes the mutant, and the file that go build is told of it with.
func (t *trial) overlay(s site) (string, error) {
	original := filepath.Join(t.root, filepath.FromSlash(s.file))
	src, err := os.ReadFile(original)
	if err != nil {
		return "", err
	}
	mutant := filepath.Join(t.dir, "mutant.go")
	if err := os.WriteFile(mutant, s.apply(src), 0o600); err != nil {
		return "", err
	}
	text, err := json.Marshal(map[string]map[string]string{"Replace": {original: mutant}})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(t.dir, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o600)
}

func (t *trial) build(ctx context.Context, overlay, pkg string) (string, bool) {
	bin := filepath.Join(t.dir, "mutant.test")
	_, err := goTool(ctx, t.root, "test", "-c", "-vet=off", "-overlay", overlay, "-o", bin, pkg)
	return bin, err == nil
}

func goTool(ctx context.Context, root string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-buildvcs=false")
	return cmd.CombinedOutput()
}

// runTests runs tests of a binary, all if none is named. Those of the root package
// run on memory only.
func runTests(ctx context.Context, bin, dir string, names []string, limit time.Duration, args ...string) ([]byte, error) {
	// The binary ends itself at the limit; a mutant may keep it from that.
	ctx, cancel := context.WithTimeout(ctx, limit+30*time.Second)
	defer cancel()
	args = append(args, "-test.failfast", "-test.timeout="+limit.String())
	if names != nil {
		args = append(args, "-test.run=^("+strings.Join(names, "|")+")$", "-test.skip=/zookeeper|//zookeeper|//.*/zookeeper")
	}
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "COORD_LONG=")
	cmd.WaitDelay = 5 * time.Second
	return cmd.CombinedOutput()
}

var failed = regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)`)

// judge tells from what a run said what became of the mutant.
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
		return caught, "goroutine left behind"
	}
	return caught, tail(out)
}

func tail(out []byte) string { return string(out[max(0, len(out)-300):]) }
