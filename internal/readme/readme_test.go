// Package readme checks with go vet and runs the Go blocks of README.md and of the guides docs/*.md as a user
// would: in a module of its own, which requires this one. It also checks that the names in all
// pages exist.
//
// The words behind ```go say what is done with a block:
//
//	```go                 built; its Test functions, and Examples with an Output, are run
//	```go alone           the same, in a package of its own instead of that of the page
//	```go in=bench        the same, with the requirements of the module in that folder
//	                      (bench, backend/etcd, oteltrace, …), whose packages it can import
//	```go illustrative    not built: a sketch, or code of a library that no module requires
//
// A block is one of these:
//
//   - a whole file that begins with a package clause: a program is built, in a folder of its own;
//   - declarations: all such blocks of a page are one package, so they can use each other;
//   - statements: they are built as the body of a function with the parameters
//     ctx context.Context, c *coord.Client and t *testing.T, and the result error. What they
//     declare need not be used.
//
// Imports may be left out: those of the standard library that are listed in wellKnown, and of the
// packages of this module and of the one named by in=. Code that the reader shall not see, but
// that the blocks need, stands in a comment of the page, which is built as a block:
//
//	<!-- go
//	type Order struct{ ID string }
//	-->
//
// The comment takes the same words. A file testdata/PAGE_test.go.txt, of the package page, is a
// further part of the page's package: a test that uses its blocks. For the blocks with in=bench it
// is PAGE_bench_test.go.txt. The errors of the compiler name the lines of the page.
//
// Names in `backquotes` that begin with a capital letter must exist in api.txt, be a test, or
// stand on the page in a comment of its own: <!-- names of others: LeaderSelector Lease -->.
package readme

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-coord/coord/internal/zktest"
)

const root = "../.."

// pages returns README.md and the guides.
func pages(t *testing.T) []string {
	t.Helper()
	guides, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	all := []string{"README.md"}
	for _, g := range guides {
		all = append(all, "docs/"+filepath.Base(g))
	}
	return all
}

// TestTheBlocksOfThePagesRun builds the Go blocks of all pages unchanged and runs the tests among
// them.
func TestTheBlocksOfThePagesRun(t *testing.T) {
	var blocks []block
	for _, page := range pages(t) {
		found, err := blocksOf(page, readFile(t, filepath.Join(root, page)))
		if err != nil {
			t.Fatal(err)
		}
		if page == "README.md" && len(found) == 0 {
			t.Fatal("the README has no Go block")
		}
		blocks = append(blocks, found...)
	}
	modules := make(map[string][]block) // by folder
	for _, b := range blocks {
		if !b.illustrative {
			modules[b.module] = append(modules[b.module], b)
		}
	}
	for folder, blocks := range modules {
		t.Run(folder, func(t *testing.T) {
			m := newModule(t, folder)
			tests := m.add(t, blocks)
			out := m.check(t)
			for _, name := range tests {
				passed := strings.Contains(out, "--- PASS: "+name+" ")
				if !passed && !strings.Contains(out, "--- SKIP: "+name+" ") {
					t.Errorf("%s did not run:\n%s", name, out)
				}
			}
			if folder != "." {
				return
			}
			t.Run("the program of the README takes its lock and writes under it on a server", func(t *testing.T) {
				zktest.Require(t)
				e := zktest.Run(t, nil)
				program := ""
				for _, b := range blocks {
					if b.page == "README.md" && b.kind == wholeFile {
						program = b.folder()
					}
				}
				out := m.run(t, append([]string{"go", "run", "./" + program}, e.Addrs()...)...)
				if !strings.Contains(out, "locked, fencing token ") {
					t.Errorf("the program did not report that it has the lock:\n%s", out)
				}
			})
			t.Run("the certificates and the permissions of the guide to production work on a server", func(t *testing.T) {
				zktest.Require(t)
				dir, servers := guidedServer(t)
				t.Setenv("COORD_GUIDE_TLS", dir)
				t.Setenv("COORD_GUIDE_SERVERS", servers)
				if out := m.run(t, "go", "test", "-count=1", "-vet=off", "-v", "-run", "TestOrders", "./docs_production"); !strings.Contains(out, "--- PASS: TestOrders") {
					t.Errorf("the test did not run:\n%s", out)
				}
			})
		})
	}
}

// guidedServer runs the commands of docs/production.md that make certificates, and starts a
// server with the settings of that page, which also refuses sessions without credentials.
func guidedServer(t *testing.T) (dir, servers string) {
	t.Helper()
	text := readFile(t, filepath.Join(root, "docs", "production.md"))
	commands := all(text, "(?s)```sh\n(mkdir.*?)```")
	settings := all(text, "(?s)```properties\n(.*?)```")
	if len(commands) != 1 || len(settings) != 1 {
		t.Fatalf("%d blocks of commands, %d of settings", len(commands), len(settings))
	}
	dir = t.TempDir()
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", commands[0])
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the commands: %v\n%s", err, out)
	}
	dir = filepath.Join(dir, "tls")
	config := map[string]string{"enforce.auth.enabled": "true", "enforce.auth.schemes": "digest"}
	for _, line := range strings.Split(strings.ReplaceAll(settings[0], "/etc/zookeeper/tls", dir), "\n") {
		if name, value, ok := strings.Cut(line, "="); ok && name != "secureClientPort" {
			config[name] = value
		}
	}
	e := zktest.Run(t, &zktest.Options{TLS: &zktest.TLSOptions{}, Config: config})
	return dir, strings.Join(e.SecureAddrs(), ",")
}
