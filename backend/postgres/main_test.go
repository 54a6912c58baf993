package postgres_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/go-coord/coord/backend/postgres/pgtest"
)

// shared is the server of all tests that do not break it. Without fsync a busy disk does not delay
// leases; no test ends the machine.
var shared = pgtest.Shared{Options: &pgtest.Options{Settings: map[string]string{"fsync": "off", "max_connections": "300", "max_prepared_transactions": "5"}}}

func TestMain(m *testing.M) { goleak.VerifyTestMain(shared.Main(m)) }
