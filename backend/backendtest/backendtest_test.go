package backendtest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/backendtest"
	"github.com/go-coord/coord/backend/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// store is the memory backend as a service.
type store struct {
	*memory.Store
	root string
}

func (s store) Root() string                      { return s.root }
func (s store) Link(name string) backendtest.Link { return s.Store.Link(name) }

func memoryHarness(timeout time.Duration) backendtest.Harness { return memoryWithout(timeout, 0) }

// memoryWithout is the memory backend without some features.
func memoryWithout(timeout time.Duration, features backend.Features) backendtest.Harness {
	return backendtest.Harness{
		New: func(t *testing.T) backendtest.Service {
			return store{memory.New(&memory.Options{SessionTimeout: timeout, Without: features, ContainerInterval: time.Second}), "/"}
		},
		SessionTimeout: timeout,
		Collects:       true,
	}
}

func TestMemoryKeepsTheContract(t *testing.T) {
	h := memoryHarness(2 * time.Second)
	h.Parallel = true
	backendtest.Run(t, h)
}

func TestMemoryKeepsTheContractInsideABubble(t *testing.T) {
	h := memoryHarness(10 * time.Second)
	h.Leaf = synctest.Test
	backendtest.Run(t, h)
}

func TestMemoryWithoutItsFeaturesKeepsTheContract(t *testing.T) {
	h := memoryWithout(10*time.Second, backend.Containers|backend.Trees|backend.Batches|backend.Clock)
	h.Leaf = synctest.Test
	backendtest.Run(t, h)
}

// storeBelow is a memory service whose root is below the root of its tree.
func storeBelow(t *testing.T, root string) backendtest.Service {
	st := store{memory.New(nil), root}
	s, err := st.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i, c := range root {
		if c == '/' && i > 0 {
			mustCreate(t, s, root[:i])
		}
	}
	mustCreate(t, s, root)
	return st
}

func mustCreate(t *testing.T, s backend.Session, path string) {
	t.Helper()
	if _, err := s.Commit(t.Context(), backend.Create(path, nil, backend.Persistent)); err != nil {
		t.Fatal(err)
	}
}
