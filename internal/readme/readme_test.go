// Package readme builds and runs the snippets of the README as a user would: in a module of
// its own, which requires this one. It also checks that the names in all pages exist.
package readme

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/zktest"
)

// imports are the packages that a reader imports for a block that is not a whole program.
var imports = []string{
	"context", "errors", "log", "testing", "testing/synctest", "time",
	"github.com/go-coord/coord", "github.com/go-coord/coord/backend/memory",
}

// TestTheSnippetsOfTheREADMERun builds all Go blocks of the README unchanged,
// together in one package. It runs the test among them, the program, and drives_test.go,
// which uses the other blocks.
func TestTheSnippetsOfTheREADMERun(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) []byte {
		t.Helper()
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	programs, tests := 0, 0
	for i, block := range regexp.MustCompile("(?s)\n```go\n(.*?)```\n").FindAllSubmatch(read(filepath.Join(root, "README.md")), -1) {
		switch source := string(block[1]); {
		case strings.HasPrefix(source, "package main\n"):
			programs++
			write("main.go", source)
		case strings.Contains(source, "func Test"):
			tests++
			write(fmt.Sprintf("block%d_test.go", i), whole(source))
		default:
			write(fmt.Sprintf("block%d.go", i), whole(source))
		}
	}
	if programs != 1 || tests == 0 {
		t.Fatalf("%d programs and %d tests in the README, expected one program and some tests", programs, tests)
	}
	write("drives_test.go", string(read("testdata/drives_test.go.txt")))

	write("go.sum", string(read(filepath.Join(root, "go.sum"))))
	mod := string(read(filepath.Join(root, "go.mod")))
	mod = regexp.MustCompile(`(?m)^module .*$`).ReplaceAllLiteralString(mod, "module example.com/first")
	write("go.mod", mod+"\nrequire github.com/go-coord/coord v0.0.0\n\nreplace github.com/go-coord/coord => "+root+"\n")

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
	out := run("go", "test", "-count=1", "-v", ".")
	for _, name := range []string{"TestTheNextCandidateTakesOver", "TestLead", "TestSend"} {
		if !strings.Contains(out, "--- PASS: "+name+" ") {
			t.Errorf("%s did not run:\n%s", name, out)
		}
	}

	t.Run("the program takes its lock and writes under it on a server", func(t *testing.T) {
		zktest.Require(t)
		e := zktest.Run(t, nil)
		out := run(append([]string{"go", "run", "."}, e.Addrs()...)...)
		if !strings.Contains(out, "locked, fencing token ") {
			t.Errorf("the program did not report that it has the lock:\n%s", out)
		}
	})
}

// whole makes a file of a block of declarations: it adds the imports that the
// block uses.
func whole(block string) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "package main\n\nimport (\n")
	for _, path := range imports {
		name := path[strings.LastIndexByte(path, '/')+1:]
		if regexp.MustCompile(`\b` + name + `\.`).MatchString(block) {
			fmt.Fprintf(&b, "\t%q\n", path)
		}
	}
	fmt.Fprintf(&b, ")\n\n%s", block)
	return b.String()
}
