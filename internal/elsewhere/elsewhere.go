// Package elsewhere runs tests of the root module on the service of another module, which the root
// module cannot import: the go command builds them together with test files of that module.
//
// Each package of users has tests on a real server, ZooKeeper unless coordtest.Elsewhere or
// ensemble.Elsewhere is set. A generated file sets it.
package elsewhere

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A Module has a service. Its folder is two levels below the root, and its tests run there.
type Module struct {
	// Package is that of its test files, such as etcd_test.
	Package string

	// Service is the package that they become below internal, such as etcdservice. It has a function
	// New for coordtest.Elsewhere, and a variable Ensembles for ensemble.Elsewhere.
	Service string

	// Files are the test files of the service. If one is of the module's own package, the value is the
	// name that it gets there.
	Files map[string]string

	// New is the source of one more file of the service.
	New string
}

// users are the packages of the root module that run elsewhere.
var users = map[string]struct{ name, variable, value string }{
	"inspect":             {"inspect_test", "coordtest", "New"},
	"internal/simulation": {"simulation_test", "coordtest", "New"},
	"internal/chaos":      {"chaos", "ensemble", "Ensembles"},
	"internal/faulttest":  {"faulttest", "ensemble", "Ensembles"},
	"internal/sweep":      {"sweep", "ensemble", "Ensembles"},
}

const user = `package NAME

import (
	"github.com/go-coord/coord/internal/SERVICE"
	"github.com/go-coord/coord/internal/VARIABLE"
)

func init() { VARIABLE.Elsewhere = SERVICE.VALUE }
`

// files returns the text of each generated file, by its path below the root of the repository.
func (m Module) files(t *testing.T, module, folder string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for from, at := range m.Files {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if at == "" {
			at = filepath.Join("internal", m.Service, strings.TrimSuffix(from, "_test.go")+".go")
		} else {
			at = filepath.Join(module, at)
		}
		all[at] = strings.Replace(string(text), "package "+m.Package, "package "+m.Service, 1)
	}
	u, ok := users[folder]
	if !ok {
		t.Fatalf("%s does not run elsewhere", folder)
	}
	all[filepath.Join("internal", m.Service, "new.go")] = m.New
	all[filepath.Join(folder, "elsewhere_test.go")] = strings.NewReplacer("NAME", u.name, "SERVICE", m.Service, "VARIABLE", u.variable, "VALUE", u.value).Replace(user)
	return all
}

// Run runs tests of a package of the root module with arguments of go test, and returns what they
// print. The environment variable COORD_ELSEWHERE_LOG names a file for it.
func (m Module) Run(t *testing.T, folder string, env []string, args ...string) (string, error) {
	t.Helper()
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(here, "../..")
	module, err := filepath.Rel(root, here)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	overlay := make(map[string]string)
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	for at, text := range m.files(t, module, folder) {
		overlay[filepath.Join(root, at)] = write(strings.ReplaceAll(at, "/", "-"), text)
	}
	text, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", append([]string{
		"test", "-overlay", write("overlay.json", string(text)), "-vet=off", "-count=1", "-v", "-ldflags=-s -w", // which links in half the time
	}, args...)...)
	cmd.Args = append(cmd.Args, ".")
	cmd.Dir = filepath.Join(root, folder)
	// Without Java the tests that start a ZooKeeper of their own are skipped.
	cmd.Env = append(os.Environ(), "GOWORK="+filepath.Join(root, "go.work"), "GOFLAGS=-buildvcs=false "+os.Getenv("GOFLAGS"), "JAVA_HOME=/none", "COORD_REQUIRE_ZK=")
	cmd.Env = append(cmd.Env, env...)
	var said bytes.Buffer
	cmd.Stdout = &said
	if path := os.Getenv("COORD_ELSEWHERE_LOG"); path != "" {
		log, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		cmd.Stdout = io.MultiWriter(&said, log)
	}
	cmd.Stderr = cmd.Stdout
	err = cmd.Run()
	return said.String(), err
}

// Tail returns the end of what tests that failed have printed.
func Tail(out string) string {
	var lines []string
	for line := range strings.Lines(out) {
		if !strings.Contains(line, "=== ") && !strings.Contains(line, "--- PASS") && !strings.Contains(line, "--- SKIP") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-200):], "")
}

// Passed reports whether a test has passed, by what it printed.
func Passed(out, name string) bool {
	return slices.ContainsFunc(strings.Split(out, "\n"), func(line string) bool {
		return strings.HasPrefix(strings.TrimSpace(line), "--- PASS: "+name+" ")
	})
}
