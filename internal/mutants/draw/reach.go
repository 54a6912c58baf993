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
	"strconv"
	"strings"
	"time"
)

// reach records which tests of the suites reach a site, and the time that each takes.
type reach struct {
	Sources uint64 // checksum of the measured sources
	Took    map[string]time.Duration
	Tests   map[int][]string // by the number of the site
}

// tests returns the tests that reach a site, except those that take longer than most, split
// into fast ones and others.
func (r *reach) tests(number int, most time.Duration) (quick, slow []string) {
	for _, name := range r.Tests[number] {
		switch took := r.Took[name]; {
		case took > most:
		case took < 300*time.Millisecond:
			quick = append(quick, name)
		default:
			slow = append(slow, name)
		}
	}
	return quick, slow
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
	for _, suite := range suites {
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

// measure runs each test of a suite by itself, on memory. A test is known by the path of its
// suite and its name.
func (r *reach) measure(ctx context.Context, b *build, suite string) error {
	list := exec.CommandContext(ctx, b.binary(suite), "-test.list", "^(Test|Fuzz|Example)")
	list.Dir = filepath.Join(b.root, suite)
	out, err := list.Output()
	if err != nil {
		return err
	}
	names := strings.Fields(string(out))
	reached := filepath.Join(b.dir, "reached")
	for i, name := range names {
		if i%50 == 0 {
			log.Printf("reach of the tests of %s: %d of %d", suite, i, len(names))
		}
		if err := os.RemoveAll(reached); err != nil {
			return err
		}
		test := path.Join(suite, name)
		began := time.Now()
		out, err := b.run(ctx, suite, -1, []string{name}, 5*time.Minute, "COORD_MUTANT_SITES="+reached)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			log.Printf("%s fails without any mutant, and is skipped:\n%s", test, tail(out))
			continue
		}
		r.Took[test] = time.Since(began)
		text, err := os.ReadFile(reached)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, field := range strings.Fields(string(text)) {
			n, err := strconv.Atoi(field)
			if err != nil {
				return err
			}
			r.Tests[n] = append(r.Tests[n], test)
		}
	}
	return nil
}
