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
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// reach records which tests of the root package reach a site, and the time that each takes.
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
// it: it runs each test of the root package by itself, on memory.
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
	list := exec.CommandContext(ctx, b.binary("."), "-test.list", "^(Test|Fuzz|Example)")
	list.Dir = b.root
	out, err := list.Output()
	if err != nil {
		return nil, err
	}
	names := strings.Fields(string(out))
	reached := filepath.Join(b.dir, "reached")
	for i, name := range names {
		if i%50 == 0 {
			log.Printf("reach of the tests: %d of %d", i, len(names))
		}
		if err := os.RemoveAll(reached); err != nil {
			return nil, err
		}
		began := time.Now()
		out, err := b.run(ctx, ".", -1, []string{name}, 5*time.Minute, "COORD_MUTANT_SITES="+reached)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			log.Printf("%s fails without any mutant, and is skipped:\n%s", name, tail(out))
			continue
		}
		r.Took[name] = time.Since(began)
		text, err := os.ReadFile(reached)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, field := range strings.Fields(string(text)) {
			n, err := strconv.Atoi(field)
			if err != nil {
				return nil, err
			}
			r.Tests[n] = append(r.Tests[n], name)
		}
	}
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return r, os.WriteFile(stored, text, 0o600)
}
