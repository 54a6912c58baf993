// Package readme tries what the README shows as a user would: in a module of its
// own, which requires this one.
package readme

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/zktest"
)

// around is what a reader adds to the second snippet, which is a test function.
const around = `package main

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/memory"
)

`

// TestTheSnippetsOfTheREADMERun builds and runs both, as they stand there.
func TestTheSnippetsOfTheREADMERun(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	snippets := regexp.MustCompile("(?s)\n```go\n(.*?)```\n").FindAllStringSubmatch(string(text), -1)
	if len(snippets) != 2 {
		t.Fatalf("%d snippets in the README, expected a program and a test", len(snippets))
	}
	program, test := snippets[0][1], snippets[1][1]
	if !strings.HasPrefix(program, "package main\n") || !strings.HasPrefix(test, "func Test") {
		t.Fatal("the first snippet is no program, or the second no test")
	}

	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("main.go", program)
	write("main_test.go", around+test)
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	write("go.sum", string(sums))
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^go .*$`).Find(mod)
	zk := regexp.MustCompile(`(?m)github.com/go-zookeeper/zk .*$`).Find(mod)
	write("go.mod", "module example.com/first\n\n"+string(version)+
		"\n\nrequire github.com/go-coord/coord v0.0.0\n\nrequire "+string(zk)+" // indirect"+
		"\n\nreplace github.com/go-coord/coord => "+root+"\n")

	run := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
		cmd.WaitDelay = 10 * time.Second
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	run("go", "vet", ".")
	if out := run("go", "test", "-count=1", "-v", "."); !strings.Contains(out, "--- PASS: ") {
		t.Errorf("the test of the second snippet did not run:\n%s", out)
	}

	t.Run("the program takes its lock on a server", func(t *testing.T) {
		zktest.Require(t)
		e := zktest.Run(t, nil)
		cmd := exec.CommandContext(t.Context(), "go", append([]string{"run", "."}, e.Addrs()...)...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "mine, with token ") {
			t.Errorf("the program: %v\n%s", err, out)
		}
	})
}
