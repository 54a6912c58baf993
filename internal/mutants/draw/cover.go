package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// reach tells which tests of the root package run a line, and how long each takes.
type reach struct {
	Took  map[string]time.Duration
	Lines map[string][]span // by file
}

// span is a run of lines that a test reaches.
type span struct {
	First, Last int
	Test        string
}

// tests returns the tests that run a line, but for those that take longer than most,
// split into quick ones and others.
func (r *reach) tests(file string, line int, most time.Duration) (quick, slow []string) {
	seen := make(map[string]bool)
	for _, s := range r.Lines[file] {
		if line < s.First || line > s.Last || seen[s.Test] || r.Took[s.Test] > most {
			continue
		}
		seen[s.Test] = true
		if r.Took[s.Test] < 300*time.Millisecond {
			quick = append(quick, s.Test)
		} else {
			slow = append(slow, s.Test)
		}
	}
	return quick, slow
}

// loadReach reads the stored coverage, or measures and stores it: each test of the
// root package by itself, on memory.
func loadReach(ctx context.Context, root, dir string) (*reach, error) {
	stored := filepath.Join(dir, "reach.json")
	r := &reach{Took: make(map[string]time.Duration), Lines: make(map[string][]span)}
	if text, err := os.ReadFile(stored); err == nil {
		return r, json.Unmarshal(text, r)
	}
	bin := filepath.Join(dir, "cover.test")
	if out, err := goTool(ctx, root, "test", "-c", "-o", bin, "-cover", "-coverpkg=.,./backend/memory", "."); err != nil {
		return nil, fmt.Errorf("build with coverage: %w\n%s", err, out)
	}
	list := exec.CommandContext(ctx, bin, "-test.list", "^(Test|Fuzz|Example)")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		return nil, err
	}
	mod, err := goTool(ctx, root, "list", "-m")
	if err != nil {
		return nil, err
	}
	names := strings.Fields(string(out))
	profile := filepath.Join(dir, "profile")
	for i, name := range names {
		if i%50 == 0 {
			log.Printf("coverage: %d of %d tests", i, len(names))
		}
		began := time.Now()
		out, err := runTests(ctx, bin, root, 0, []string{name}, 5*time.Minute, "-test.coverprofile="+profile)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			log.Printf("%s fails without any mutant, and is left out:\n%s", name, tail(out))
			continue
		}
		r.Took[name] = time.Since(began)
		if err := r.read(profile, strings.TrimSpace(string(mod)), name); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return r, os.WriteFile(stored, text, 0o600)
}

var block = regexp.MustCompile(`^(.+):(\d+)\.\d+,(\d+)\.\d+ \d+ (\d+)$`)

// read adds the profile of one test.
func (r *reach) read(profile, mod, name string) error {
	f, err := os.Open(profile)
	if err != nil {
		return err
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		m := block.FindStringSubmatch(sc.Text())
		if m == nil || m[4] == "0" {
			continue
		}
		file := path.Clean(strings.TrimPrefix(strings.TrimPrefix(m[1], mod), "/"))
		first, _ := strconv.Atoi(m[2])
		last, _ := strconv.Atoi(m[3])
		r.Lines[file] = append(r.Lines[file], span{first, last, name})
	}
	return nil
}
