package etcd_test

import (
	"os"
	"testing"
	"time"

	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/etcd"
	"github.com/go-coord/coord/internal/coordtest"
	"github.com/go-coord/coord/internal/recipetest"
)

// Each run selects one in twelve tests of the recipes at random. COORD_LONG=1 selects all.
func TestTheRecipes(t *testing.T) {
	t.Parallel()
	on := func(o etcd.Options) func(t *testing.T) backendtest.Service {
		o.SessionTimeout = coordtest.RealTimeout
		return func(t *testing.T) backendtest.Service { return newService(t, shared.get(t), o) }
	}
	services := recipetest.Services{
		Name: "etcd", New: on(etcd.Options{}), Collecting: on(etcd.Options{ContainerInterval: 200 * time.Millisecond}), Revisions: true, Spares: true,
	}
	if os.Getenv("COORD_LONG") == "" {
		services.Share = 12
	}
	recipetest.All(t, services)
}

// The reports of the recipes.
func TestInspectOnEtcd(t *testing.T) {
	t.Parallel()
	etcdModule.RunHalves(t, "inspect", "etcd", 3, "COORD_ETCD_SERVER="+shared.get(t))
}
