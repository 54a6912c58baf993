package pgtest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrNotInstalled is matched by the errors of Find, New and others if PostgreSQL is missing.
var ErrNotInstalled = errors.New("PostgreSQL is not installed")

// installation is the directory of PostgreSQL's programs, and the user that runs them.
type installation struct {
	bin  string
	user account
}

// Find returns the directory of PostgreSQL's programs, the first of these:
//
//   - the environment variable COORD_POSTGRES;
//   - the directory of the program postgres in PATH;
//   - that of the highest version in /usr/lib/postgresql, where Debian's package postgresql puts them.
//
// The error matches ErrNotInstalled and says what to install.
func Find() (string, error) {
	const install = "install PostgreSQL (Debian, Ubuntu: apt-get install postgresql), or set COORD_POSTGRES to the directory of its programs"
	if dir := os.Getenv("COORD_POSTGRES"); dir != "" {
		if !complete(dir) {
			return "", fmt.Errorf("pgtest: %w: COORD_POSTGRES is set, and %s has no initdb, postgres, psql and pg_basebackup: %s", ErrNotInstalled, dir, install)
		}
		return filepath.Abs(dir)
	}
	if path, err := exec.LookPath("postgres"); err == nil && complete(filepath.Dir(path)) {
		return filepath.Abs(filepath.Dir(path))
	}
	return findIn("/usr/lib/postgresql", install)
}

// findIn returns the programs of the highest version in a directory that has one for each version.
func findIn(root, install string) (string, error) {
	dirs, err := filepath.Glob(filepath.Join(root, "*", "bin"))
	if err != nil {
		return "", err
	}
	dirs = slices.DeleteFunc(dirs, func(dir string) bool { return !complete(dir) })
	if len(dirs) == 0 {
		return "", fmt.Errorf("pgtest: %w: no server in PATH and in %s: %s", ErrNotInstalled, root, install)
	}
	return slices.MaxFunc(dirs, func(a, b string) int { return cmp.Compare(version(a), version(b)) }), nil
}

// version returns the version in the path of programs, 0 for a directory with another name.
func version(bin string) float64 {
	v, _ := strconv.ParseFloat(filepath.Base(filepath.Dir(bin)), 64)
	return v
}

// complete reports whether a directory has the programs that this package runs.
func complete(dir string) bool {
	for _, name := range []string{"initdb", "postgres", "psql", "pg_basebackup"} {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

func find() (installation, error) {
	bin, err := Find()
	if err != nil {
		return installation{}, err
	}
	who, err := runAs()
	return installation{bin, who}, err
}

func (i installation) path(program string) string { return filepath.Join(i.bin, program) }

// tempDir makes a temporary directory of the user of the servers, in parent or in the default
// directory.
func (i installation) tempDir(parent string) (string, error) {
	parents := []string{parent}
	if parent == "" {
		parents = []string{os.TempDir(), "/tmp"}
	}
	var err error
	for _, parent := range parents {
		// The system knows the processes of a server by this path.
		if parent, err = filepath.EvalSymlinks(parent); err != nil {
			continue
		}
		if parent, err = filepath.Abs(parent); err != nil {
			continue
		}
		if err = i.user.canEnter(parent); err != nil {
			continue
		}
		var dir string
		if dir, err = os.MkdirTemp(parent, "coord-postgres-"); err != nil {
			continue
		}
		if err = i.user.own(dir); err != nil {
			return "", errors.Join(fmt.Errorf("pgtest: %w", err), os.Remove(dir))
		}
		return dir, nil
	}
	return "", fmt.Errorf("pgtest: no directory for the data: %w", err)
}

// prepare makes a command run as the user of the servers, in a directory, without the settings of
// the environment for clients.
func (i installation) prepare(cmd *exec.Cmd, dir string) {
	cmd.Dir = dir
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "PG") || strings.HasPrefix(v, "LC_") || strings.HasPrefix(v, "LANG")
	})
	cmd.Env = append(cmd.Env, "LC_ALL=C")
	i.user.prepare(cmd)
}

// run runs a program and returns what it prints.
func (i installation) run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	i.prepare(cmd, dir)
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("pgtest: %s: %w: %s", filepath.Base(name), errors.Join(ctx.Err(), err), bytes.TrimSpace(stderr.Bytes()))
	}
	return strings.TrimSuffix(stdout.String(), "\n"), nil
}
