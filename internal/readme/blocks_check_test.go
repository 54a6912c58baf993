package readme

import (
	"slices"
	"strings"
	"testing"
)

func TestABlockIsBuiltAsItsMarkSays(t *testing.T) {
	text := readFile(t, "testdata/page.md")
	blocks, err := blocksOf("guide/page.md", text)
	if err != nil {
		t.Fatal(err)
	}
	in := func(folder string) (some []block) {
		for _, b := range blocks {
			if !b.illustrative && b.module == folder {
				some = append(some, b)
			}
		}
		return some
	}
	if len(blocks) != 7 || len(in(".")) != 5 || len(in("backend/etcd")) != 1 {
		t.Fatalf("%d blocks, %d of the root, %d of etcd", len(blocks), len(in(".")), len(in("backend/etcd")))
	}
	m := newModule(t, ".")
	if tests := m.add(t, in(".")); !slices.Equal(tests, []string{"TestPlace"}) {
		t.Errorf("tests %q", tests)
	}
	if out := m.check(t); !strings.Contains(out, "--- PASS: TestPlace ") {
		t.Errorf("the test did not run:\n%s", out)
	}
	other := newModule(t, "backend/etcd")
	other.add(t, in("backend/etcd"))
	other.check(t)

	t.Run("an error names the line of the page", func(t *testing.T) {
		bad, err := blocksOf("guide/bad.md", "Text.\n\n```go\nfunc f() int {\n\treturn missing\n}\n```\n")
		if err != nil {
			t.Fatal(err)
		}
		m := newModule(t, ".")
		m.add(t, bad)
		if out, err := m.try(t, "go", "vet", "./..."); err == nil || !strings.Contains(out, "guide/bad.md:5:") || !strings.Contains(out, "undefined: missing") {
			t.Errorf("error %v, output\n%s", err, out)
		}
	})
}

func TestAPageThatCannotBeBuiltIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"```go fast\nx := 1\n```\n":            `page.md:1: a block is marked "fast"`,
		"\n```go\nfunc {\n```\n":               "page.md:3: the block is no Go",
		"- list\n  ```go\n  x := 1\n  ```\n":   "indented",
		"```golang\nx := 1\n```\n":             "not marked with go",
		"```go\nredsync.New(pool…)\n```\n":     "page.md:2: the block is no Go",
		"<!-- go everywhere\nvar x = 1\n-->\n": `marked "everywhere"`,
	} {
		if _, err := blocksOf("page.md", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
	if blocks, err := blocksOf("page.md", "```go illustrative\nredsync.New(pool…)\n```\n"); err != nil || len(blocks) != 1 {
		t.Errorf("an illustrative block: %d, %v", len(blocks), err)
	}
}
