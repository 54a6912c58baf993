package coordtest_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The guide says how long a test with a lost reply is, and how long what it stands on.
func TestTheGuideSaysWhatATestSaves(t *testing.T) {
	guide, err := os.ReadFile("../docs/testing-your-code.md")
	if err != nil {
		t.Fatal(err)
	}
	const name = "TestAJobRunsOnceAlthoughTheReplyOfItsCommitIsLost"
	test := 0
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "example_test.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.Name == name {
			test = fset.Position(fn.End()).Line - fset.Position(fn.Pos()).Line + 1
		}
	}
	// The guide's copy has no t.Parallel.
	if want := fmt.Sprintf("The test has %d lines.", test-1); test == 0 || !strings.Contains(string(guide), want) {
		t.Errorf("the guide does not say %q", want)
	}
	below := 0
	for _, dir := range []string{".", "../internal/zkproxy", "../internal/jute", "../internal/zktest"} {
		n := code(t, dir)
		t.Logf("figure: %d lines of code in %s, without tests, comments and blank lines", n, dir)
		below += n
	}
	const says = "about 3,000 lines"
	if below < 2500 || below > 3500 || !strings.Contains(string(guide), says) {
		t.Errorf("the test stands on %d lines; the guide is to say %q", below, says)
	}
	t.Logf("figure: a test that loses the reply of a commit: %d lines, on %d lines of code", test-1, below)
}

// code counts the lines with code in the files of a package that are no tests.
func code(t *testing.T, dir string) (n int) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		fset := token.NewFileSet()
		var s scanner.Scanner
		s.Init(fset.AddFile(file, fset.Base(), len(text)), text, nil, 0)
		lines := make(map[int]bool)
		for {
			pos, tok, _ := s.Scan()
			if tok == token.EOF {
				break
			}
			lines[fset.Position(pos).Line] = true
		}
		n += len(lines)
	}
	return n
}
