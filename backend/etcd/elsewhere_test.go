package etcd_test

import "github.com/go-coord/coord/internal/elsewhere"

// etcdModule runs tests of the root module on etcd.
var etcdModule = elsewhere.Module{
	Package: "etcd_test",
	Service: "etcdservice",
	Files: map[string]string{
		"service_test.go": "",
		"trips_test.go":   "",
		"cluster_test.go": "",
		"disk_test.go":    "",
		"history_test.go": "",
		"peers_test.go":   "",
		"line_test.go":    "",
		"export_test.go":  "export.go",
	},
	New: `package etcdservice

import (
	"os"
	"testing"
	"time"

	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/internal/coordtest"
)

func New(t *testing.T, interval time.Duration) (s backendtest.Service, revisions bool) {
	return newService(t, os.Getenv("COORD_ETCD_SERVER"), etcd.Options{SessionTimeout: coordtest.RealTimeout, ContainerInterval: interval}), true
}
`,
}
