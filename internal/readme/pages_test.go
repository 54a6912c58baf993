package readme

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// notOurs are names in the pages that are not in api.txt.
var notOurs = []string{
	"LOST", "SUSPENDED", "TestingServer", "IsOwner", // names of peers
	"CC", "PATH", // environment variables of others
	"TryX", "NewX", "TestTheThing", "NAME", // placeholders
}

// TestThePagesNameWhatIsThere checks that the links, names, tests, files, variables and
// commands in the pages exist, so that a change of any of them is noticed. It skips the names
// in the changelog, which also describes past versions.
func TestThePagesNameWhatIsThere(t *testing.T) {
	read := func(name string) string {
		t.Helper()
		return readFile(t, filepath.Join(root, name))
	}
	exported := regexp.MustCompile(`\w+`).FindAllString(read("api.txt"), -1)
	tests, variables := sources(t, root)
	for _, page := range append(pages(t), "BENCHMARKS.md", "SECURITY.md", "TESTING.md", "CONTRIBUTING.md", "CHANGELOG.md") {
		text := read(page)
		var others []string // names of peers on this page
		for _, names := range all(text, `<!-- names of others: ([^>]*)-->`) {
			others = append(others, strings.Fields(names)...)
		}
		prose := regexp.MustCompile("(?s)\n```.*?\n```\n").ReplaceAllString(text, "\n")
		exists := func(what string) {
			t.Helper()
			found, err := filepath.Glob(filepath.Join(root, what))
			if err != nil || len(found) == 0 {
				t.Errorf("%s: there is no %s, error %v", page, what, err)
			}
		}
		for _, link := range all(prose, `\]\(([^)]+)\)`) {
			file, anchor, _ := strings.Cut(link, "#")
			if strings.Contains(link, "://") {
				continue
			}
			if file != "" {
				exists(filepath.Join(filepath.Dir(page), file))
			}
			if anchor == "" {
				continue
			}
			other := page
			if file != "" {
				other = filepath.Join(filepath.Dir(page), file)
			}
			if !slices.Contains(anchors(read(other)), anchor) {
				t.Errorf("%s: %s has no heading for the link %s", page, other, link)
			}
		}
		for _, name := range all(prose, `pkg\.go\.dev/github\.com/go-coord/coord[\w/]*#([A-Z]\w*(?:\.[A-Z]\w*)?)\)`) {
			for _, part := range strings.Split(name, ".") {
				if !slices.Contains(exported, part) {
					t.Errorf("%s: a link to the manual names %s, which is not there", page, name)
				}
			}
		}
		if page == "CHANGELOG.md" {
			continue
		}
		for _, file := range append(all(prose, "`([a-z_*]+(?:/[a-z_*]+)*\\.(?:go|md|sh|txt))`"),
			all(prose, "`((?:internal|backend|examples|cmd|bench|fence|gocronlock|lifecycle|grpcresolver|oteltrace|coordtest|docs|status)(?:/[a-z]+)*)`")...) {
			if !strings.HasPrefix(file, "results") { // a run of bench writes these
				exists(file)
			}
		}
		for _, folder := range all(text, `[ (]\./([a-z]+(?:/[a-z]+)*(?:\.sh)?)\b`) {
			exists(folder)
		}
		for _, name := range all(prose, "`([A-Z]\\w*(?:\\.[A-Z]\\w*)*)…?`") {
			for _, part := range strings.Split(name, ".") {
				ok := slices.Contains(exported, part) || slices.Contains(notOurs, part) || slices.Contains(others, part) || slices.Contains(variables, part) ||
					slices.ContainsFunc(tests, func(test string) bool { return strings.HasPrefix(test, part) })
				if !ok && page != "BENCHMARKS.md" { // BENCHMARKS.md has names of peers
					t.Errorf("%s: there is no name %s", page, name)
				}
			}
		}
		for _, test := range all(text, ` -(?:run|fuzz) '?(\w+)`) {
			if !slices.Contains(notOurs, test) && !slices.ContainsFunc(tests, func(name string) bool { return strings.Contains(name, test) }) {
				t.Errorf("%s: no test matches %s", page, test)
			}
		}
		for _, variable := range all(text, `\b(COORD_[A-Z_]+)`) {
			if !slices.Contains(variables, variable) {
				t.Errorf("%s: nothing reads %s", page, variable)
			}
		}
	}
	for _, command := range []string{"\ngo run ./examples/tour ", "\n./test.sh "} {
		if !strings.Contains(read("README.md"), command) {
			t.Errorf("the README does not show the command %q", strings.TrimSpace(command))
		}
	}
}

// TestEachAlertHasASectionInTheRunbook checks the links of the alert rules.
func TestEachAlertHasASectionInTheRunbook(t *testing.T) {
	rules := readFile(t, filepath.Join(root, "docs", "alerts.yaml"))
	names := all(rules, `(?m)^ *- alert: (\w+)$`)
	links := all(rules, `(?m)^ *runbook(?:_url)?: \S*docs/runbook\.md#(\S+)$`)
	sections := anchors(readFile(t, filepath.Join(root, "docs", "runbook.md")))
	if len(names) == 0 || len(links) != len(names) {
		t.Fatalf("%d alerts have %d links", len(names), len(links))
	}
	for i, name := range names {
		if links[i] != strings.ToLower(name) || !slices.Contains(sections, links[i]) {
			t.Errorf("%s has the link %s; the runbook has the sections %q", name, links[i], sections)
		}
	}
}

// anchors returns the names that a forge gives to the headings of a page.
func anchors(text string) (names []string) {
	for _, heading := range all(text, `(?m)^#+ (.*)$`) {
		heading = regexp.MustCompile(`[^\p{L}\p{N}_ -]`).ReplaceAllString(strings.ToLower(heading), "")
		names = append(names, strings.ReplaceAll(heading, " ", "-"))
	}
	return append(names, all(text, `<a (?:id|name)="([^"]+)">`)...)
}

// all returns the matches of the group of a regular expression in a text.
func all(text, pattern string) (matches []string) {
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		matches = append(matches, m[1])
	}
	return matches
}

// sources returns the names of all tests, and the environment variables that the sources
// name.
func sources(t *testing.T, root string) (tests, variables []string) {
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "pages_test.go") {
			return err
		}
		b, err := os.ReadFile(path)
		tests = append(tests, all(string(b), `(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)...)
		variables = append(variables, all(string(b), `"(COORD(?:CTL)?_[A-Z_]+|[A-Z]+_CLASSPATH|JAVA_HOME|ZOOKEEPER_HOME)\b`)...)
		return err
	})
	if err != nil || len(tests) == 0 || len(variables) == 0 {
		t.Fatalf("%d tests, %d variables, error %v", len(tests), len(variables), err)
	}
	return tests, variables
}
