package postgres_test

import (
	"os"
	"testing"
	"time"

	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/postgres"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/recipetest"
)

// Each run selects one in twelve tests of the recipes at random. COORD_LONG=1 selects all.
func TestTheRecipes(t *testing.T) {
	t.Parallel()
	server := shared.Get(t)
	on := func(interval time.Duration) func(t *testing.T) backendtest.Service {
		return func(t *testing.T) backendtest.Service {
			return used.newService(t, server.Addr(), postgres.Options{SessionTimeout: coordtest.RealTimeout, ContainerInterval: interval})
		}
	}
	services := recipetest.Services{Name: "postgres", New: on(0), Collecting: on(200 * time.Millisecond), Spares: true}
	if os.Getenv("COORD_LONG") == "" {
		services.Share = 12
	}
	recipetest.All(t, services)
}

// The reports of the recipes.
func TestInspectOnPostgreSQL(t *testing.T) {
	t.Parallel()
	module.RunHalves(t, "inspect", "PostgreSQL", 3, "COORD_POSTGRES_SERVER="+shared.Get(t).Addr())
}

// The forms of internal/simulation that run on a real server.
func TestCrowds(t *testing.T) {
	t.Parallel()
	coordtest.OnlyLong(t)
	module.Crowds(t, "COORD_POSTGRES_SERVER="+shared.Get(t).Addr())
}
