package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed peers/Curator.java
var curatorSource []byte

//go:embed peers/kazoo.py
var kazooSource string

// errNotInstalled: a peer is not installed. It is reported and skipped.
var errNotInstalled = errors.New("not installed")

// A missing is a peer that was skipped.
type missing struct {
	Who   string `json:"who"`
	Why   string `json:"why"`
	Wants string `json:"wants"` // packages
}

// peers are the available peers.
type peers struct {
	all     []rival // all peers with locks
	curator *foreign
	kazoo   *foreign
	etcd    *etcdCluster
	// postgres is nil without PostgreSQL.
	postgres *pgServer
	missing  []missing
}

// openPeers starts the peers. A peer that is not installed is skipped, or installed if
// install is set; an installed peer that does not start is an error.
func openPeers(ctx context.Context, e *env, c *config, notes io.Writer) (*peers, error) {
	p := &peers{all: []rival{native{goZK}}}
	for _, x := range []struct {
		who, packages string
		open          func() error
	}{
		{byCurator, "default-jdk-headless libcurator-recipes-java libslf4j-java", func() (err error) {
			p.curator, err = startCurator(ctx, e)
			if err == nil {
				p.all = append(p.all, p.curator)
			}
			return err
		}},
		{byKazoo, "python3-kazoo", func() (err error) {
			p.kazoo, err = startKazoo(ctx, e)
			if err == nil {
				p.all = append(p.all, p.kazoo)
			}
			return err
		}},
		{byEtcd, "nothing", func() (err error) { // it is part of this command
			p.etcd, err = startEtcd(ctx, c.etcd)
			if err == nil {
				e.atEnd(p.etcd.Close)
				p.all = append(p.all, native{p.etcd.contestant()})
			}
			return err
		}},
		{onPostgres, "postgresql", func() (err error) {
			p.postgres, err = startPostgres(ctx)
			if err == nil {
				e.atEnd(p.postgres.Close)
			}
			return err
		}},
	} {
		fmt.Fprintf(notes, "starting %s\n", x.who)
		err := x.open()
		if errors.Is(err, errNotInstalled) && c.install {
			fmt.Fprintf(notes, "installing %s\n", x.packages)
			if ierr := aptInstall(ctx, strings.Fields(x.packages), notes); ierr != nil {
				return nil, fmt.Errorf("install %s: %w", x.who, ierr)
			}
			err = x.open()
		}
		if errors.Is(err, errNotInstalled) {
			fmt.Fprintf(notes, "SKIPPED: %s: %v; -install installs %s\n", x.who, err, x.packages)
			p.missing = append(p.missing, missing{x.who, err.Error(), x.packages})
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", x.who, err)
		}
	}
	return p, nil
}

// aptInstall installs packages on Debian and Ubuntu.
func aptInstall(ctx context.Context, packages []string, out io.Writer) error {
	apt, err := exec.LookPath("apt-get")
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("only root can install packages")
	}
	run := func(args ...string) error {
		cmd := exec.CommandContext(ctx, apt, args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		cmd.Stdout, cmd.Stderr = out, out
		return cmd.Run()
	}
	args := append([]string{"install", "-y", "--no-install-recommends"}, packages...)
	if err := run(args...); err == nil {
		return nil
	}
	// The package lists can be missing, or too old to name packages that still exist.
	if err := run("update"); err != nil {
		return err
	}
	return run(args...)
}

// The directory where Debian puts the jars. The manifest of zookeeper.jar names its own
// dependencies.
const jarDir = "/usr/share/java"

var (
	neededJars   = []string{"curator-recipes", "curator-framework", "curator-client", "zookeeper", "zookeeper-jute", "guava", "slf4j-api"}
	optionalJars = []string{"slf4j-simple"} // a logger
)

// startCurator compiles the program with Curator's recipes and starts it.
func startCurator(ctx context.Context, e *env) (*foreign, error) {
	java, err := findJava("java")
	if err != nil {
		return nil, err
	}
	javac, err := findJava("javac")
	if err != nil {
		return nil, err
	}
	classpath := os.Getenv("CURATOR_CLASSPATH")
	if classpath == "" {
		var jars []string
		for _, jar := range append(neededJars[:len(neededJars):len(neededJars)], optionalJars...) {
			file := filepath.Join(jarDir, jar+".jar")
			_, err := os.Stat(file)
			if err == nil {
				jars = append(jars, file)
			} else if jar != optionalJars[0] {
				return nil, fmt.Errorf("%w: %v", errNotInstalled, err)
			}
		}
		classpath = strings.Join(jars, string(os.PathListSeparator))
	}
	dir, err := os.MkdirTemp("", "coord-curator-")
	if err != nil {
		return nil, err
	}
	e.atEnd(func() error { return os.RemoveAll(dir) })
	source := filepath.Join(dir, "Curator.java")
	if err := os.WriteFile(source, curatorSource, 0o644); err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, javac, "-nowarn", "-J-Xmx128m", "-J-XX:+UseSerialGC", "-J-XX:TieredStopAtLevel=1",
		"-proc:none", "-encoding", "UTF-8", "-cp", classpath, "-d", dir, source).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("javac: %w\n%s", err, out)
	}
	f, err := startForeign(ctx, byCurator, exec.Command(java,
		"-Xmx1g", "-XX:+UseSerialGC", "-Djava.net.preferIPv4Stack=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
		"-cp", dir+string(os.PathListSeparator)+classpath, "Curator"))
	if err != nil {
		return nil, err
	}
	e.atEnd(f.Close)
	return f, nil
}

func findJava(tool string) (string, error) {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		tool = filepath.Join(home, "bin", tool)
	}
	path, err := exec.LookPath(tool)
	if err != nil {
		return "", fmt.Errorf("%w: %v", errNotInstalled, err)
	}
	return path, nil
}

// startKazoo starts the program with kazoo's recipes. The package is for the system's Python,
// which need not be the first in PATH.
func startKazoo(ctx context.Context, e *env) (*foreign, error) {
	var why []error
	for _, python := range []string{"/usr/bin/python3", "python3"} {
		out, err := exec.CommandContext(ctx, python, "-c", "import kazoo.recipe.lock").CombinedOutput()
		if err != nil {
			why = append(why, fmt.Errorf("%s: %w: %s", python, err, lastLine(out)))
			continue
		}
		f, err := startForeign(ctx, byKazoo, exec.Command(python, "-c", kazooSource))
		if err != nil {
			return nil, err
		}
		e.atEnd(f.Close)
		return f, nil
	}
	return nil, fmt.Errorf("%w: %w", errNotInstalled, errors.Join(why...))
}

func lastLine(b []byte) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1]
}
