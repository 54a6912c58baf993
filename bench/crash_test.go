package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/go-coord/coord/internal/zktest"
)

// The time from a kill -9 of a peer that holds a lock to the grant of the next one, with sessions of 10 s, ten kills each. They are spread over a third
// of the timeout after the grant, as those of TestGuard_TimesOfTheGrants in cmd/coordctl.
//
//	COORD_LONG=1 go test -v -timeout 30m -run TestPeers_TimesOfTheGrantsAfterAKill .
func TestPeers_TimesOfTheGrantsAfterAKill(t *testing.T) {
	if os.Getenv("COORD_LONG") != "1" {
		t.Skip("set COORD_LONG=1")
	}
	const times, timeout = 10, 10 * time.Second
	addrs := zktest.Run(t, &zktest.Options{Servers: 3}).Addrs()
	for name, start := range map[string]func(context.Context, *env) (*foreign, error){byCurator: startCurator, byKazoo: startKazoo} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := &env{addrs: addrs}
			defer e.Close()
			open := func() *foreign {
				t.Helper()
				f, err := start(t.Context(), e)
				if errors.Is(err, errNotInstalled) {
					t.Skip(err)
				}
				if err != nil {
					t.Fatal(err)
				}
				return f
			}
			heir, all := open(), &place{addrs: addrs}
			var took []time.Duration
			for i := range times {
				holder, path := open(), e.path()
				if _, err := holder.ask(t.Context(), "hold", servers(all), path, timeout.Milliseconds()); err != nil {
					t.Fatal(err)
				}
				held := time.Now()
				if _, err := heir.ask(t.Context(), "heir", servers(all), path, timeout.Milliseconds()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Until(held.Add(time.Duration(i) * timeout / 3 / times)))
				began := time.Now()
				holder.Close()
				if _, err := heir.ask(t.Context(), "granted"); err != nil {
					t.Fatal(err)
				}
				took = append(took, time.Since(began))
				if _, err := heir.ask(t.Context(), "drop"); err != nil {
					t.Fatal(err)
				}
			}
			slices.Sort(took)
			t.Logf("figure: %s, kill -9: median %.1f ms, maximum %.1f ms", name, millis((took[(times-1)/2]+took[times/2])/2), millis(took[times-1]))
			if took[0] < timeout/2 {
				t.Errorf("%v", took)
			}
		})
	}
}
