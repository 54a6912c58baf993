package main

import (
	"archive/zip"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const version = "v1.234.5"

// TestWhatGoGetResolvesTo releases the checkout to a module proxy of files, and uses it as a
// user would. Modules of others come from the module cache if they are there.
func TestWhatGoGetResolvesTo(t *testing.T) {
	checkout := t.TempDir()
	if err := os.CopyFS(checkout, source(t)); err != nil {
		t.Fatal(err)
	}
	proxy := t.TempDir()
	publish(t, checkout, proxy)

	// Between releases the module cannot be installed.
	u := newUser(t, proxy, t.TempDir())
	if out, err := u.run("go", "get", root+"/oteltrace@"+version); err == nil || !strings.Contains(out, root+"@v0.0.0") {
		t.Errorf("without the preparation: %v\n%s", err, out)
	}

	if err := prepare(checkout, version); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(proxy); err != nil {
		t.Fatal(err)
	}
	publish(t, checkout, proxy)
	cache := t.TempDir()
	for get, want := range map[string][]string{
		root + "/backend/zookeeper":           {root},
		root + "/backend/etcd@" + version:     {root, root + "/backend/etcd"},
		root + "/backend/postgres@" + version: {root, root + "/backend/postgres"},
		root + "/fence@" + version:            {root, root + "/backend/postgres", root + "/fence"},
		root + "/gocronlock@" + version:       {root, root + "/gocronlock"},
		root + "/grpcresolver@" + version:     {root, root + "/grpcresolver"},
		root + "/oteltrace@" + version:        {root, root + "/oteltrace"},
	} {
		u := newUser(t, proxy, cache)
		u.must("go", "get", get)
		var got []string
		for line := range strings.Lines(u.must("go", "list", "-m", "all")) {
			if name, v, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(name, root) {
				if got = append(got, name); v != version {
					t.Errorf("go get %s: %s at %s", get, name, v)
				}
			}
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("go get %s: %v, want %v", get, got, want)
		}
	}

	// The command can be installed outside of a module, which a replace directive would prevent.
	// -n only prints what would be done; the tests of the checkout build it.
	newUser(t, proxy, cache).must("go", "install", "-n", root+"/cmd/coordctl@"+version)

	// The released modules fit together.
	u = newUser(t, proxy, cache)
	u.must("go", "get", root+"/oteltrace")
	u.write("main.go", `package main

import (
	"context"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/oteltrace"
)

func main() {
	b := zookeeper.New([]string{"127.0.0.1"}, nil)
	coord.Open(context.Background(), b, &coord.Options{Trace: oteltrace.New(nil)})
}
`)
	// This only lists the packages; the tests of the checkout show that the sources fit
	// together.
	u.must("go", "list", "-deps", ".")
}

func TestInvalidVersionsAreRefused(t *testing.T) {
	for _, v := range []string{"", "1.2.3", "v1.2", "v1.2.3.4", "v01.2.3", "v2.0.0", "v1.2.3+build", "latest"} {
		if err := prepare(t.TempDir(), v); err == nil || !strings.Contains(err.Error(), "is not a version") {
			t.Errorf("%q: %v", v, err)
		}
	}
}

// source is this repository without the files and directories that begin with a dot.
func source(t *testing.T) fs.FS {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return visible{os.DirFS(dir)}
}

type visible struct{ fs.FS }

func (v visible) ReadDir(name string) ([]fs.DirEntry, error) {
	all, err := fs.ReadDir(v.FS, name)
	kept := all[:0]
	for _, e := range all {
		if !strings.HasPrefix(e.Name(), ".") {
			kept = append(kept, e)
		}
	}
	return kept, err
}

// publish writes the modules of a checkout to a proxy, as a proxy that has seen the tags of
// the version serves them.
func publish(t *testing.T, checkout, proxy string) {
	t.Helper()
	for _, folder := range append([]string{"."}, released...) {
		dir := filepath.Join(checkout, folder)
		module := path.Join(root, folder)
		at := filepath.Join(proxy, filepath.FromSlash(module), "@v")
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{
			"list":            version + "\n",
			version + ".info": `{"Version":"` + version + `","Time":"2026-01-02T03:04:05Z"}`,
			version + ".mod":  string(mod),
		} {
			if err := os.WriteFile(filepath.Join(at, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		f, err := os.Create(filepath.Join(at, version+".zip"))
		if err != nil {
			t.Fatal(err)
		}
		z := zip.NewWriter(f)
		err = filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if e.IsDir() {
				// A nested module is not part of this one.
				if _, err := os.Stat(filepath.Join(file, "go.mod")); err == nil && file != dir {
					return filepath.SkipDir
				}
				return nil
			}
			name, err := filepath.Rel(dir, file)
			if err != nil {
				return err
			}
			w, err := z.Create(module + "@" + version + "/" + filepath.ToSlash(name))
			if err != nil {
				return err
			}
			r, err := os.Open(file)
			if err != nil {
				return err
			}
			defer r.Close()
			_, err = io.Copy(w, r)
			return err
		})
		if err == nil {
			err = z.Close()
		}
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// user is a module without requirements. Its module cache is a temporary one, so that the
// released version does not stay on this machine.
type user struct {
	t   *testing.T
	dir string
	env []string
}

func newUser(t *testing.T, proxy, cache string) *user {
	t.Helper()
	out, err := exec.Command("go", "env", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		t.Fatal(err)
	}
	known, usual, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	u := &user{t: t, dir: t.TempDir(), env: append(os.Environ(),
		"GOWORK=off",
		"GOFLAGS=-mod=mod -modcacherw -trimpath "+os.Getenv("GOFLAGS"), // of another folder each time: it compiles what is new only
		"GOMODCACHE="+cache,
		"GOPROXY=file://"+filepath.ToSlash(proxy)+",file://"+filepath.ToSlash(filepath.Join(known, "cache", "download"))+","+usual,
		"GOSUMDB=off",
		"GONOPROXY=", // any value, even an empty one, makes it ask the cache first, which has only the root
		"GOPRIVATE=",
		"GOTOOLCHAIN=local",
	)}
	u.write("go.mod", "module example.com/user\n\ngo 1.25\n")
	return u
}

func (u *user) write(name, text string) {
	u.t.Helper()
	if err := os.WriteFile(filepath.Join(u.dir, name), []byte(text), 0o644); err != nil {
		u.t.Fatal(err)
	}
}

func (u *user) run(args ...string) (string, error) {
	cmd := exec.CommandContext(u.t.Context(), args[0], args[1:]...)
	cmd.Dir, cmd.Env = u.dir, u.env
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (u *user) must(args ...string) string {
	u.t.Helper()
	out, err := u.run(args...)
	if err != nil {
		u.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}
