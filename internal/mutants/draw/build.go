package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// packages are the directories of the packages in which mutants are made.
var packages = []string{".", "inspect", "internal/layout", "backend/memory", "backend/zookeeper"}

// suites are the directories of the packages whose tests try the mutants of all packages.
var suites = []string{".", "internal/recipetest", "inspect", "internal/hostile", "internal/simulation"}

// build is the library with all mutants in it, and the binaries of its tests.
type build struct {
	root, dir string
	sources   map[string][]byte // by file
	sites     []*site
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

// compile drops the sites that do not build, and builds the tests of all packages and suites.
func (b *build) compile(ctx context.Context) error {
	var overlay string
	for {
		var err error
		if overlay, err = b.overlay(); err != nil {
			return err
		}
		args := []string{"build", "-overlay", overlay, "-gcflags=-e"}
		for _, pkg := range packages {
			args = append(args, "./"+pkg)
		}
		out, err := goTool(ctx, b.root, args...)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !b.drop(out) {
			return fmt.Errorf("build: %w\n%s", err, out)
		}
	}
	for _, pkg := range slices.Compact(slices.Sorted(slices.Values(slices.Concat(packages, suites)))) {
		if out, err := goTool(ctx, b.root, "test", "-c", "-vet=off", "-overlay", overlay, "-o", b.binary(pkg), "./"+pkg); err != nil {
			return fmt.Errorf("build the tests: %w\n%s", err, out)
		}
	}
	return nil
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

// run runs tests of a package with a mutant.
func (b *build) run(ctx context.Context, pkg string, mutant int, names []string, limit time.Duration, env ...string) ([]byte, error) {
	return runTests(ctx, b.binary(pkg), filepath.Join(b.root, pkg), mutant, names, limit, env...)
}
