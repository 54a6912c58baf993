package zktest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ErrNotInstalled is matched by the errors of Find and Start if ZooKeeper or Java is missing.
var ErrNotInstalled = errors.New("ZooKeeper is not installed")

// The directory where the package zookeeper of Debian and Ubuntu puts the jars. The manifest
// of the main jar names its class path, except the two other jars here: Netty's codec, which
// TLS needs, and a logger.
const (
	mainJar   = "/usr/share/java/zookeeper.jar"
	codecJar  = "/usr/share/java/netty-codec.jar"
	loggerJar = "/usr/share/java/slf4j-simple.jar"
)

type installation struct {
	java      string
	classpath string
}

// Find returns the class path for servers, from the first of these that is there:
//
//   - the environment variable ZOOKEEPER_CLASSPATH, as Java takes it;
//   - the environment variable ZOOKEEPER_HOME, the folder of an unpacked release of Apache
//     ZooKeeper: its lib/*.jar, and its folder conf for the settings of the log;
//   - the jars that Debian's package zookeeper puts into /usr/share/java.
//
// Java is found by JAVA_HOME or PATH. The error matches ErrNotInstalled and says what to install.
func Find() (classpath string, err error) {
	inst, err := find()
	return inst.classpath, err
}

func find() (installation, error) {
	const install = "install ZooKeeper 3.8 and Java (Debian, Ubuntu: apt-get install zookeeper default-jre-headless), " +
		"or unpack a release of Apache ZooKeeper and set ZOOKEEPER_HOME to its folder, or set ZOOKEEPER_CLASSPATH to its jars"
	var inst installation
	java := "java"
	if home := os.Getenv("JAVA_HOME"); home != "" {
		java = filepath.Join(home, "bin", "java")
	}
	path, err := exec.LookPath(java)
	if err != nil {
		return inst, fmt.Errorf("zktest: %w: no java (%v): %s", ErrNotInstalled, err, install)
	}
	inst.java = path
	if inst.classpath = os.Getenv("ZOOKEEPER_CLASSPATH"); inst.classpath != "" {
		return inst, nil
	}
	if home := os.Getenv("ZOOKEEPER_HOME"); home != "" {
		jars, err := filepath.Glob(filepath.Join(home, "lib", "*.jar"))
		if err != nil || len(jars) == 0 {
			return inst, fmt.Errorf("zktest: %w: ZOOKEEPER_HOME is set, and %s has no jars: %s", ErrNotInstalled, filepath.Join(home, "lib"), install)
		}
		inst.classpath = strings.Join(append([]string{filepath.Join(home, "conf")}, jars...), string(os.PathListSeparator))
		return inst, nil
	}
	if _, err := os.Stat(mainJar); err != nil {
		return inst, fmt.Errorf("zktest: %w: no jar (%v): %s", ErrNotInstalled, err, install)
	}
	jars := []string{mainJar}
	for _, jar := range []string{codecJar, loggerJar} {
		if _, err := os.Stat(jar); err == nil {
			jars = append(jars, jar)
		}
	}
	inst.classpath = strings.Join(jars, string(os.PathListSeparator))
	return inst, nil
}
