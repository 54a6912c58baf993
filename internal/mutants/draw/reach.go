package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// reach records which tests reach a site, and the time that each takes.
type reach struct {
	Sources uint64 // checksum of the measured sources
	Took    map[string]time.Duration
	Tests   map[int][]string // by the number of the site
}

// tests returns the tests that reach a site, except those that take longer than most, in
// batches, the fast ones first.
func (r *reach) tests(number int, most time.Duration) [3][]string {
	var batches [3][]string
	for _, name := range r.Tests[number] {
		switch took := r.Took[name]; {
		case took > most:
		case took < 300*time.Millisecond:
			batches[0] = append(batches[0], name)
		case took < 3*time.Second:
			batches[1] = append(batches[1], name)
		default:
			batches[2] = append(batches[2], name)
		}
	}
	return batches
}

// sum is the checksum of the sources with their sites.
func (b *build) sum() uint64 {
	h := fnv.New64a()
	for _, s := range b.sites {
		fmt.Fprintln(h, s.number, s)
	}
	return h.Sum64()
}

// loadReach reads the result of an earlier run on the same sources, or measures and stores
// it.
func loadReach(ctx context.Context, b *build, dir string) (*reach, error) {
	stored := filepath.Join(dir, "reach.json")
	r := &reach{}
	switch text, err := os.ReadFile(stored); {
	case err == nil:
		if err := json.Unmarshal(text, r); err != nil {
			return nil, err
		}
		if r.Sources == b.sum() {
			return r, nil
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	r = &reach{Sources: b.sum(), Took: make(map[string]time.Duration), Tests: make(map[int][]string)}
	for _, suite := range b.tries() {
		if err := r.measure(ctx, b, suite); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return r, os.WriteFile(stored, text, 0o600)
}

var (
	declared = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w*)\(`)
	result   = regexp.MustCompile(`(?m)^ *--- (PASS|FAIL|SKIP): (\S+) \(([\d.]+s)\)`)
	foreign  = regexp.MustCompile(`OnEtcd$`) // tests that build tests of the root module, without the mutants
)

// groups returns the tests of a package in the groups that are measured together: each test by
// itself, or all of a file where each start of a server costs time.
func (b *build) groups(ctx context.Context, pkg string) ([][]string, error) {
	dir := filepath.Join(b.root, pkg)
	list := exec.CommandContext(ctx, b.binary(pkg), "-test.list", "^(Test|Fuzz|Example)")
	list.Dir = dir
	out, err := list.Output()
	if err != nil {
		return nil, err
	}
	names := strings.Fields(string(out))
	var all [][]string
	if !slices.Contains(served, pkg) {
		for _, name := range names {
			all = append(all, []string{name})
		}
		return all, nil
	}
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var group []string
		for _, m := range declared.FindAllStringSubmatch(string(src), -1) {
			if slices.Contains(names, m[1]) && !foreign.MatchString(m[1]) {
				group = append(group, m[1])
			}
		}
		if group != nil {
			all = append(all, group)
		}
	}
	return all, nil
}

// measure runs the tests of a package, one group at a time. A test is known by the path of its
// package and its name. All tests of a group count as reaching what one of them reaches.
func (r *reach) measure(ctx context.Context, b *build, pkg string) error {
	groups, err := b.groups(ctx, pkg)
	if err != nil {
		return err
	}
	reached := filepath.Join(b.dir, "reached")
	for i, group := range groups {
		if i%50 == 0 {
			log.Printf("reach of the tests of %s: group %d of %d", pkg, i, len(groups))
		}
		if err := os.RemoveAll(reached); err != nil {
			return err
		}
		// A test that fails has no line of a pass.
		out, _ := b.run(ctx, pkg, -1, group, 5*time.Minute, "COORD_MUTANT_SITES="+reached)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		text, err := os.ReadFile(reached)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		outcome, took := make(map[string]string), make(map[string]time.Duration)
		for _, m := range result.FindAllStringSubmatch(string(out), -1) {
			d, err := time.ParseDuration(m[3])
			if err != nil {
				return err
			}
			outcome[m[2]] = m[1]
			// The time of a test lacks that of its parallel subtests.
			top, _, _ := strings.Cut(m[2], "/")
			took[top] = max(took[top], d)
		}
		for _, name := range group {
			switch outcome[name] {
			case "SKIP":
				continue
			case "PASS":
			default:
				log.Printf("%s/%s fails without any mutant, and is skipped:\n%s", pkg, name, tail(out))
				continue
			}
			test := path.Join(pkg, name)
			r.Took[test] = took[name]
			for _, field := range strings.Fields(string(text)) {
				n, err := strconv.Atoi(field)
				if err != nil {
					return err
				}
				r.Tests[n] = append(r.Tests[n], test)
			}
		}
	}
	return nil
}
