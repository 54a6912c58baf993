package zktest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestAServerCanHaveItsDataElsewhereAndAnEnvironment(t *testing.T) {
	elsewhere := t.TempDir()
	e := Run(t, &Options{
		DataDir: func(id int) string { return filepath.Join(elsewhere, strconv.Itoa(id)) },
		// The JVM logs that it picked up this variable.
		Env: func(id int) []string { return []string{"JDK_JAVA_OPTIONS=-Dserver.number=" + strconv.Itoa(id)} },
	})
	s := e.Servers()[0]
	if want := filepath.Join(elsewhere, "1"); s.DataDir() != want {
		t.Errorf("data in %s, want %s", s.DataDir(), want)
	}
	if _, err := os.Stat(filepath.Join(elsewhere, "1", "version-2")); err != nil {
		t.Errorf("nothing is written there: %v", err)
	}
	if environ, err := os.ReadFile("/proc/" + strconv.Itoa(s.Pid()) + "/environ"); err == nil && !strings.Contains(string(environ), "JDK_JAVA_OPTIONS=-Dserver.number=1") {
		t.Errorf("environment %q", environ)
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(elsewhere, "1", "version-2")); err != nil {
		t.Errorf("Close has removed a directory that it does not own: %v", err)
	}
}
