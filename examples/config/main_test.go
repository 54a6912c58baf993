package main

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/goleak"

	"github.com/go-coord/coord"
	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/memory"
	"github.com/go-coord/coord/examples/internal/exampletest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheProgramRuns(t *testing.T) {
	exampletest.Runs(t, func(ctx context.Context, b backend.Backend) error { return run(ctx, b, 4) }, `applies {Level:info Workers:4}`)
}

func TestProgramsFollowTheConfiguration(t *testing.T) {
	exampletest.Tells(t, "config", story,
		`app-1 +keeps its configuration: .*not found`,
		`app-2 +keeps its configuration: .*not found`,
		`app-1 +applies {Level:info Workers:4}`,
		`app-2 +applies {Level:info Workers:4}`,
		`app-1 +keeps its configuration: .*decode`,
		`app-2 +keeps its configuration: .*decode`,
		`app-2 +loses contact`,
		`app-1 +applies {Level:debug Workers:8}`,
		`app-1 +applies {Level:debug Workers:9}`,
		`app-2 +has contact again`,
		`app-2 +applies {Level:debug Workers:9}`,
	)
}

func TestAnInvalidConfigurationIsRefused(t *testing.T) {
	c, err := coord.Open(t.Context(), memory.New(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	v := coord.NewValue[Config](c, "/config", nil)
	if _, err := v.Set(t.Context(), Config{Workers: -1}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	refused := false
	err = follow(ctx, v, func(got Config) { t.Errorf("applied %+v", got) }, func(error) {
		refused = true
		cancel()
	})
	if !refused || !errors.Is(err, context.Canceled) {
		t.Errorf("refused %v, ended with %v", refused, err)
	}
}

func TestFollowingEndsWithTheClient(t *testing.T) {
	c, err := coord.Open(t.Context(), memory.New(nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	v := coord.NewValue[Config](c, "/config", nil)
	c.Close()
	if err := follow(t.Context(), v, func(Config) {}, func(error) {}); !errors.Is(err, coord.ErrClosed) {
		t.Errorf("ended with %v", err)
	}
}
