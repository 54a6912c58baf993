package etcd_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// overlaid are the files of this module that the tests of the root are built together with. These
// cannot import this module.
var overlaid = map[string]string{
	"service_test.go": "internal/etcdservice/service.go",
	"trips_test.go":   "internal/etcdservice/trips.go",
	"cluster_test.go": "internal/etcdservice/cluster.go",
	"disk_test.go":    "internal/etcdservice/disk.go",
	"history_test.go": "internal/etcdservice/history.go",
	"peers_test.go":   "internal/etcdservice/peers.go",
	"line_test.go":    "internal/etcdservice/line.go",
	"export_test.go":  "backend/etcd/export.go",
}

// written are the files that make the tests of the root use etcd.
var written = map[string]string{
	"internal/etcdservice/new.go": `package etcdservice

import (
	"os"
	"testing"
	"time"

	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/internal/coordtest"
)

func New(t *testing.T, interval time.Duration) backendtest.Service {
	return newService(t, os.Getenv("COORD_ETCD_SERVER"), etcd.Options{SessionTimeout: coordtest.RealTimeout, ContainerInterval: interval})
}
`,
	"inspect/elsewhere_test.go":             "package inspect_test" + services,
	"internal/simulation/elsewhere_test.go": "package simulation_test" + services,
	"internal/chaos/elsewhere_test.go":      "package chaos" + ensembles,
	"internal/faulttest/elsewhere_test.go":  "package faulttest" + ensembles,
	"internal/sweep/elsewhere_test.go":      "package sweep" + ensembles,
}

const services = `

import (
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/etcdservice"
)

func init() { coordtest.Elsewhere = etcdservice.New }
`

const ensembles = `

import (
	"github.com/go-coord/coord/internal/ensemble"
	"github.com/go-coord/coord/internal/etcdservice"
)

func init() { ensemble.Elsewhere = etcdservice.Ensembles }
`

// elsewhere runs tests of a package of the root module on etcd, and returns what they say. The
// environment variable COORD_ELSEWHERE_LOG names a file for it.
func elsewhere(t *testing.T, folder string, env []string, args ...string) (string, error) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	overlay := make(map[string]string)
	write := func(at, text string) {
		file := filepath.Join(dir, strings.ReplaceAll(at, "/", "-"))
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		overlay[filepath.Join(root, at)] = file
	}
	for from, at := range overlaid {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		write(at, strings.Replace(string(text), "package etcd_test", "package etcdservice", 1))
	}
	for at, text := range written {
		write(at, text)
	}
	text, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	write("overlay.json", string(text))
	cmd := exec.CommandContext(t.Context(), "go", append([]string{
		"test", "-overlay", filepath.Join(dir, "overlay.json"), "-vet=off", "-count=1", "-v", "-ldflags=-s -w", // which links in half the time
	}, args...)...)
	cmd.Args = append(cmd.Args, ".")
	cmd.Dir = filepath.Join(root, folder)
	// Without Java the tests that start a ZooKeeper of their own are skipped.
	cmd.Env = append(os.Environ(), "GOWORK="+filepath.Join(root, "go.work"), "GOFLAGS=-buildvcs=false -trimpath", "JAVA_HOME=/none", "COORD_REQUIRE_ZK=")
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
