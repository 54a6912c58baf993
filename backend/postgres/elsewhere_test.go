package postgres_test

import "github.com/go-coord/coord/internal/elsewhere"

// module runs tests of the root module on PostgreSQL.
var module = elsewhere.Module{
	Package: "postgres_test",
	Service: "postgresservice",
	Files: map[string]string{
		"service_test.go":  "",
		"line_test.go":     "",
		"ensemble_test.go": "",
		"cluster_test.go":  "",
		"disk_test.go":     "",
	},
	New: `package postgresservice

import (
	"os"
	"testing"
	"time"

	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/internal/coordtest"
)

func New(t *testing.T, interval time.Duration) (s backendtest.Service, revisions bool) {
	return used.newService(t, os.Getenv("COORD_POSTGRES_SERVER"), postgres.Options{SessionTimeout: coordtest.RealTimeout, ContainerInterval: interval}), false
}
`,
}
