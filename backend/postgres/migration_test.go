package postgres_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/postgres"
)

// The SQL of Migration makes a schema that Open can use, and changes nothing in an up-to-date schema.
func TestMigration_MakesWhatOpenUses(t *testing.T) {
	t.Parallel()
	e := shared.Get(t)
	ctx := t.Context()
	for _, schema := range []string{`it's a "schema" $coord_block$`, "migrated"} {
		b := postgres.New(e.URL(""), &postgres.Options{Schema: schema, KeepSchema: true})
		if s, err := b.Open(ctx); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "missing or old") {
			t.Fatalf("without a schema: %v, %v", s, err)
		}
		name := `"` + strings.ReplaceAll(schema, `"`, `""`) + `"`
		if got, err := e.Exec(ctx, "", "SELECT count(*) FROM pg_namespace WHERE nspname = $x$"+schema+"$x$"); err != nil || got != "0" {
			t.Fatalf("%s schemas, %v: Open with KeepSchema has made one", got, err)
		}
		for range 2 {
			if _, err := e.Exec(ctx, "", postgres.Migration(schema)); err != nil {
				t.Fatal(err)
			}
			s, err := b.Open(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			_, err = s.Commit(ctx, backend.Create("/n", nil, backend.Persistent))
			if err != nil && !errors.Is(err, backend.ErrExists) {
				t.Fatal(err)
			}
		}
		want := fmt.Sprintf("%d|1", postgres.Layout())
		if got, err := e.Exec(ctx, "", "SELECT version, (SELECT count(*) FROM "+name+".node WHERE path = '/n') FROM "+name+".layout"); err != nil || got != want {
			t.Errorf("layout and nodes: %q, %v, want %q", got, err, want)
		}
	}
}
