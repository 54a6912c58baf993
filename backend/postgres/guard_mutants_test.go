package postgres_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/go-coord/coord/backend/postgres"
)

// The tests of the guard find each defect in the functions of the schema. The short form tries some.
func TestGuard_DefectsAreFound(t *testing.T) {
	t.Parallel()
	played := func(c scene) func(sh *shop) error {
		return func(sh *shop) error {
			out, err := sh.play(c, "/lock")
			if err == nil && out != c.want() {
				err = fmt.Errorf("%v, want %v", out, c.want())
			}
			return err
		}
	}
	below := pgx.ReadCommitted
	defects := []struct {
		name     string
		function string // in which it is
		old, new string
		test     func(sh *shop) error
		says     string
	}{
		{"the node is not locked", "guard", "FOR KEY SHARE", "", played(scene{"pgx", below, ended, first}), "is the node gone: true"},
		{"the node of a paused holder is not locked", "guard", "FOR KEY SHARE", "", played(scene{"database/sql", pgx.Serializable, paused, first}), "is the node gone: true"},
		{"a session that has ended is not refused", "guard", "id = own AND NOT ended", "id = own", played(scene{"pgx", below, ended, last}), "check ok"},
		{"a refusal is no error", "guard", "RAISE EXCEPTION USING", "RAISE WARNING USING", played(scene{"pgx", below, deleted, last}), "saw 0 of the payment"},
		{"a guard whose node is missing passes", "guard", "code := 'CO010'", "code := NULL", played(scene{"pgx", below, paused, last}), "saw 0 of the payment"},
		{"the time of expiry counts", "guard", "AND NOT ended", "AND expires > clock_timestamp()", (*shop).expiredInTheSnapshot, "its session has ended"},
		{"the lock blocks new data", "guard", "FOR KEY SHARE", "FOR UPDATE", (*shop).besideGuards, "could not serialize"},
		{"a version that was compared can change", "guard", "FOR SHARE", "FOR KEY SHARE", (*shop).besideGuards, "set hold"},
		{"a version is not compared", "guard", "versions[i] <> ver", "versions[i] < ver - 1", (*shop).otherVersion, "passed"},
		{"the end of a session waits for a guard", "finish", "owner <> 0 FOR UPDATE SKIP LOCKED", "owner <> 0 FOR UPDATE", (*shop).besideGuards, "lock timeout"},
		{"the end of a session waits for the guard of a directory", "finish", "FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE", (*shop).besideGuards, "lock timeout"},
		{"the end of a session tries no lock that fits the deletion", "finish", "owner <> 0 FOR UPDATE SKIP LOCKED", "owner <> 0 FOR KEY SHARE SKIP LOCKED", (*shop).besideGuards, "lock timeout"},
		{"a deletion waits for a guard", "apply", "version) FOR UPDATE SKIP LOCKED", "version) FOR UPDATE", (*shop).besideGuards, "lock timeout"},
		{"several deletions wait for a guard", "apply", "children = 0 FOR UPDATE SKIP LOCKED", "children = 0 FOR UPDATE", (*shop).besideGuards, "lock timeout"},
		{"new data wait for a guard", "apply", "version) FOR NO KEY UPDATE SKIP LOCKED", "version)", (*shop).besideGuards, "lock timeout"},
		{"a creation conflicts with the guard of its directory", "apply", "path = d FOR NO KEY UPDATE SKIP LOCKED", "path = d FOR UPDATE SKIP LOCKED", (*shop).besideGuards, "create in dir"},
		{"a creation waits for the guard of its directory", "apply", "path = d FOR NO KEY UPDATE SKIP LOCKED", "path = d", (*shop).besideGuards, "lock timeout"},
		{"the collection of containers waits for a guard", "collect", "WHERE path = d FOR NO KEY UPDATE SKIP LOCKED", "WHERE path = d", (*shop).besideGuards, "lock timeout"},
		{"an idle transaction is not ended", "guard", "PERFORM set_config", "PERFORM concat", (*shop).idleBounds, "where 0 is set"},
		{"the bound replaces a smaller one", "guard", "(present = interval '0' OR present > idle * interval '1 ms')", "true", (*shop).idleBounds, "where 30s is set"},
		{"a connection without a bound gets none", "guard", "present = interval '0' OR", "", (*shop).idleBounds, "where 0 is set"},
		{"the bound stays after the transaction", "guard", "idle::text, true", "idle::text, false", (*shop).idleBounds, "after a transaction"},
		{"the caller needs the rights of the owner", "guard", "SECURITY DEFINER", "", (*shop).roleCanCheckOnly, "permission denied"},
		{"the caller's types are used with the rights of the owner", "guard", "SET search_path = pg_catalog, pg_temp", "", (*shop).roleCanCheckOnly, "code of the role ran"},
		{"the caller's temporary types come first", "guard", "pg_catalog, pg_temp", "pg_catalog", (*shop).roleCanCheckOnly, "code of the role ran"},
	}
	for i, d := range defects {
		if os.Getenv("COORD_LONG") == "" && i%6 > 0 {
			continue // each is a schema and a client or two
		}
		t.Run(strings.ReplaceAll(d.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			sh := newShop(t, func(schema string) string {
				before, rest, found := strings.Cut(postgres.Migration(schema), "CREATE FUNCTION \""+schema+"\"."+d.function+"(")
				body, after, ends := strings.Cut(rest, "END $$;")
				if n := strings.Count(body, d.old); !found || !ends || n != 1 {
					t.Fatalf("%q is %d times in %s: write it as the source is now", d.old, n, d.function)
				}
				return before + "CREATE FUNCTION \"" + schema + "\"." + d.function + "(" + strings.Replace(body, d.old, d.new, 1) + "END $$;" + after
			})
			if err := d.test(sh); err == nil || !strings.Contains(err.Error(), d.says) {
				t.Errorf("its test finds %v, want %q", err, d.says)
			}
		})
	}
}
