package coord_test

import (
	"testing"

	"github.com/go-coord/coord/backend/zookeeper"
	"github.com/go-coord/coord/internal/coordtest"
)

func TestMain(m *testing.M) { coordtest.Main(m) }

// world is a fresh service, with what the tests of recipes add to it.
type world struct{ *coordtest.World }

func onEach(t *testing.T, f func(w *world)) {
	coordtest.OnEach(t, func(w *coordtest.World) { f(&world{w}) })
}

func onMemory(t *testing.T, f func(w *world)) {
	coordtest.OnMemory(t, func(w *coordtest.World) { f(&world{w}) })
}

func onServer(t *testing.T, o zookeeper.Options) *world { return &world{coordtest.OnServer(t, o)} }
