//go:build linux

package interop

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-coord/coord/internal/zktest"
)

//go:embed Worker.java
var javaWorker []byte

//go:embed worker.py
var pythonWorker []byte

// The directory where Debian puts the jars. The manifest of zookeeper.jar names its own
// dependencies, such as Netty.
const jarDir = "/usr/share/java"

var (
	neededJars = []string{
		"curator-recipes", "curator-framework", "curator-client",
		"zookeeper", "zookeeper-jute", "guava", "slf4j-api",
	}
	optionalJars = []string{"slf4j-simple"} // a logger
)

// installation holds the tools that start the workers in other languages.
type installation struct {
	java, javac, classpath string
	python                 string
}

var installed = sync.OnceValues(find)

func find() (*installation, error) {
	const install = "install them (Debian, Ubuntu: apt-get install default-jdk-headless libcurator-recipes-java python3-kazoo)"
	inst := &installation{}
	for _, tool := range []struct {
		name string
		path *string
	}{{"java", &inst.java}, {"javac", &inst.javac}} {
		name := tool.name
		if home := os.Getenv("JAVA_HOME"); home != "" {
			name = filepath.Join(home, "bin", name)
		}
		path, err := exec.LookPath(name)
		if err != nil {
			return nil, fmt.Errorf("no %s (%v): %s", tool.name, err, install)
		}
		*tool.path = path
	}
	if inst.classpath = os.Getenv("CURATOR_CLASSPATH"); inst.classpath == "" {
		var jars []string
		for _, jar := range neededJars {
			file := filepath.Join(jarDir, jar+".jar")
			if _, err := os.Stat(file); err != nil {
				return nil, fmt.Errorf("no jar (%v): %s or set CURATOR_CLASSPATH", err, install)
			}
			jars = append(jars, file)
		}
		for _, jar := range optionalJars {
			file := filepath.Join(jarDir, jar+".jar")
			if _, err := os.Stat(file); err == nil {
				jars = append(jars, file)
			}
		}
		inst.classpath = strings.Join(jars, string(os.PathListSeparator))
	}
	// The package is for the system's Python, which need not be the first in PATH.
	var why []string
	for _, python := range []string{"/usr/bin/python3", "python3"} {
		out, err := exec.Command(python, "-c", "import kazoo.recipe.lock").CombinedOutput()
		if err == nil {
			inst.python = python
			return inst, nil
		}
		why = append(why, fmt.Sprintf("%s: %v %s", python, err, out))
	}
	return nil, fmt.Errorf("no Python with kazoo (%s): %s", strings.Join(why, "; "), install)
}

// require skips the test if a tool is missing, as zktest.Require does.
func require(t *testing.T) *installation {
	t.Helper()
	zktest.Require(t)
	inst, err := installed()
	if err != nil {
		zktest.Missing(t, err)
	}
	return inst
}

// classes is the directory of the compiled worker, for all tests.
var classes struct {
	once sync.Once
	dir  string
	err  error
}

// compileJava compiles the worker once, into a directory that TestMain removes.
func (inst *installation) compileJava(t *testing.T) string {
	t.Helper()
	classes.once.Do(func() {
		if classes.dir, classes.err = os.MkdirTemp("", "coord-interop-"); classes.err != nil {
			return
		}
		source := filepath.Join(classes.dir, "Worker.java")
		if classes.err = os.WriteFile(source, javaWorker, 0o644); classes.err != nil {
			return
		}
		out, err := exec.Command(inst.javac, "-nowarn", "-J-Xmx128m", "-J-XX:+UseSerialGC", "-J-XX:TieredStopAtLevel=1",
			"-proc:none", "-encoding", "UTF-8", "-cp", inst.classpath, "-d", classes.dir, source).CombinedOutput()
		if err != nil {
			classes.err = fmt.Errorf("javac: %w\n%s", err, out)
		}
	})
	if classes.err != nil {
		t.Fatal(classes.err)
	}
	return classes.dir
}
