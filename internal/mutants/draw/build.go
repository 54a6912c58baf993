package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	gobuild "go/build"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// packages are the directories of the packages in which mutants are made: those of package coord, and
// the backends and the adapters.
var packages = []string{
	".", "inspect", "internal/layout", "internal/core", "internal/line", "internal/cell", "internal/queue", "internal/mirror",
	"internal/semaphore", "internal/election", "internal/barrier", "internal/doublebarrier", "internal/group", "internal/assign", "internal/shards", "internal/schedule", "internal/txn", "internal/twophase",
	"internal/backoff", "internal/carry", "internal/contender", "internal/errs", "internal/follow", "internal/holdset", "internal/kinds", "internal/latest", "internal/nodepath",
	"internal/outbox", "internal/parallel", "internal/queuestat", "internal/serviceclock", "internal/tracing", "internal/usercode",
	"backend", "backend/memory", "backend/zookeeper", "backend/etcd", "backend/postgres",
	"lifecycle", "gocronlock", "grpcresolver", "grpcresolver/grpchealth",
}

// served are those of the packages whose tests start servers, or which no suite imports. Only their own tests try the mutants of
// such a package.
var served = []string{"backend/zookeeper", "backend/etcd", "backend/postgres", "lifecycle", "gocronlock", "grpcresolver", "grpcresolver/grpchealth"}

// suites are the directories of the packages whose tests try the mutants of the other packages.
var suites = []string{".", "internal/recipetest", "inspect", "internal/hostile", "internal/simulation"}

// build is the library with all mutants in it, and the binaries of its tests.
type build struct {
	root, dir string
	sources   map[string][]byte // by file
	sites     []*site
}

// hasTests reports whether a package has a binary of tests.
func (b *build) hasTests(pkg string) bool {
	files, _ := filepath.Glob(filepath.Join(b.root, pkg, "*_test.go"))
	return len(files) > 0
}

// find reads the sources and finds the sites.
func (b *build) find(match *regexp.Regexp) error {
	b.sources = make(map[string][]byte)
	for _, pkg := range packages {
		files, err := filepath.Glob(filepath.Join(b.root, pkg, "*.go"))
		if err != nil {
			return err
		}
		for _, f := range files {
			name := path.Join(pkg, filepath.Base(f))
			if strings.HasSuffix(name, "_test.go") || !match.MatchString(name) {
				continue
			}
			// A mutant in a file for another system would survive.
			if here, err := gobuild.Default.MatchFile(filepath.Split(f)); err != nil {
				return err
			} else if !here {
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
			b.sources[name] = src
			b.sites = append(b.sites, sites...)
		}
	}
	for i, s := range b.sites {
		s.number = i + 1
	}
	return nil
}

var packageName = regexp.MustCompile(`(?m)^package (\w+)`)

// overlay writes the sources with the sites, and the file that lists them for the go command.
func (b *build) overlay() (string, error) {
	byFile := make(map[string][]*site)
	for _, s := range b.sites {
		byFile[s.file] = append(byFile[s.file], s)
	}
	replace := make(map[string]string)
	add := func(name string, text []byte) error {
		file := filepath.Join(b.dir, filepath.FromSlash(name))
		replace[filepath.Join(b.root, filepath.FromSlash(name))] = file
		return errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, text, 0o600))
	}
	for name, sites := range byFile {
		src := b.sources[name]
		helper := path.Join(path.Dir(name), "mutants_of_draw.go")
		err := errors.Join(
			add(name, rewrite(src, sites)),
			add(helper, []byte("package "+string(packageName.FindSubmatch(src)[1])+"\n"+support)),
		)
		if err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(b.dir, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o600)
}

var complaint = regexp.MustCompile(`(?m)^(\S+?\.go):(\d+):(?:\d+:)? (.*)$`)

// compile drops the sites that do not build, and builds the tests that try the others.
func (b *build) compile(ctx context.Context) error {
	mutated := b.mutated()
	modules := make(map[string][]string) // the packages with mutants, by module
	for _, pkg := range mutated {
		dir, rel := b.home(pkg)
		modules[dir] = append(modules[dir], rel)
	}
	overlay, err := b.overlay()
	if err != nil {
		return err
	}
	for _, dir := range slices.Sorted(maps.Keys(modules)) {
		for {
			out, err := goTool(ctx, dir, append([]string{"build", "-overlay", overlay, "-gcflags=-e"}, modules[dir]...)...)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if !b.drop(out) {
				return fmt.Errorf("build: %w\n%s", err, out)
			}
			if overlay, err = b.overlay(); err != nil {
				return err
			}
		}
	}
	tests := append(b.tries(), mutated...)
	slices.Sort(tests)
	for _, pkg := range slices.Compact(tests) {
		if !b.hasTests(pkg) {
			continue
		}
		dir, rel := b.home(pkg)
		if out, err := goTool(ctx, dir, "test", "-c", "-vet=off", "-ldflags=-s -w", "-overlay", overlay, "-o", b.binary(pkg), rel); err != nil {
			return fmt.Errorf("build the tests: %w\n%s", err, out)
		}
	}
	return nil
}

// mutated returns the packages with sites.
func (b *build) mutated() []string {
	var all []string
	for _, pkg := range packages {
		if slices.ContainsFunc(b.sites, func(s *site) bool { return path.Dir(s.file) == pkg }) {
			all = append(all, pkg)
		}
	}
	return all
}

// tries returns the packages whose tests are measured: the suites if a package without servers
// has sites, and the packages with servers that have sites.
func (b *build) tries() []string {
	var all []string
	for _, pkg := range b.mutated() {
		if slices.Contains(served, pkg) {
			all = append(all, pkg)
		} else if len(all) == 0 {
			all = slices.Clone(suites)
		}
	}
	return all
}

// home returns the directory of the module that has a package, and the package as seen from there.
func (b *build) home(pkg string) (dir, rel string) {
	for rel = "."; ; pkg, rel = path.Dir(pkg), path.Join(path.Base(pkg), rel) {
		dir = filepath.Join(b.root, pkg)
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil || pkg == "." {
			return dir, "./" + rel
		}
	}
}

// drop removes the sites on the lines for which the compiler reports errors: those of risky
// kinds, or all if there is none.
func (b *build) drop(out []byte) bool {
	n := len(b.sites)
	for _, m := range complaint.FindAllStringSubmatch(string(out), -1) {
		name, err := filepath.Rel(b.dir, m[1])
		if err != nil {
			continue // a file without sites
		}
		line, err := strconv.Atoi(m[2])
		if err != nil {
			continue
		}
		here := func(s *site) bool {
			return s.file == filepath.ToSlash(name) && s.line <= line && line <= s.line+strings.Count(s.text, "\n")
		}
		risky := func(s *site) bool { return here(s) && s.kind.risky() }
		if strings.HasPrefix(m[3], "missing return") {
			// A loop without an end has got a break.
			risky = func(s *site) bool {
				return s.file == filepath.ToSlash(name) && s.kind == leaps && s.decl[0] <= line && line <= s.decl[1]
			}
		}
		if slices.ContainsFunc(b.sites, risky) {
			b.sites = slices.DeleteFunc(b.sites, risky)
		} else {
			b.sites = slices.DeleteFunc(b.sites, func(s *site) bool { return here(s) && !strings.Contains(s.text, "\n") })
		}
	}
	return len(b.sites) < n
}

func (b *build) binary(pkg string) string {
	return filepath.Join(b.dir, strings.ReplaceAll(pkg, "/", "-")+".test")
}

// run runs tests of a package with a mutant. Those that are named run on memory only, unless the
// package is a backend with servers.
func (b *build) run(ctx context.Context, pkg string, mutant int, names []string, limit time.Duration, env ...string) ([]byte, error) {
	skip := ""
	if names != nil && !slices.Contains(served, pkg) {
		skip = "/zookeeper|//zookeeper|//.*/zookeeper"
	}
	return runTests(ctx, b.binary(pkg), filepath.Join(b.root, pkg), mutant, names, skip, limit, env...)
}
