package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
	"github.com/go-coord/coord/backend/postgres"
)

// What New cannot use is an error of Open at once, which shows no password.
func TestOpen_RefusesInvalidOptions(t *testing.T) {
	t.Parallel()
	const good = "postgres://orders:sEcReT@127.0.0.1:1/orders"
	for _, test := range []struct {
		name, conn string
		o          postgres.Options
	}{
		{"the port", "postgres://orders:sEcReT@127.0.0.1:port/orders", postgres.Options{}},
		{"a URL whose password is not escaped", "postgres://orders:sEcReT%zz@127.0.0.1:1/orders", postgres.Options{}},
		{"keywords", "host=127.0.0.1 password='sEcReT", postgres.Options{}},
		{"keywords in capitals", "host=127.0.0.1 PASSWORD='sEcReT", postgres.Options{}},
		{"no connection string", "nothing of the kind", postgres.Options{}},
		{"the timeout", good, postgres.Options{SessionTimeout: time.Millisecond}},
		{"the margin", good, postgres.Options{SessionTimeout: 10 * time.Second, LossMargin: time.Millisecond}},
		{"a margin of the whole timeout", good, postgres.Options{SessionTimeout: 10 * time.Second, LossMargin: 10 * time.Second}},
		{"a schema of the server", good, postgres.Options{Schema: "pg_coord"}},
		{"a long schema", good, postgres.Options{Schema: strings.Repeat("s", 41)}},
		{"a schema with a control character", good, postgres.Options{Schema: "a\x00"}},
		{"a schema that ends a block", good, postgres.Options{Schema: "a$$b"}},
		{"a schema that is no text", good, postgres.Options{Schema: "a\xff"}},
		{"the interval of polls", good, postgres.Options{Poll: -1}},
		{"an interval of polls longer than the timeout", good, postgres.Options{Poll: time.Minute, SessionTimeout: time.Second}},
	} {
		b := postgres.New(test.conn, &test.o)
		s, err := b.Open(context.Background())
		if s != nil || !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", test.name, err)
		}
		if said := fmt.Sprint(err, b); strings.Contains(said, "EcR") {
			t.Errorf("%s: the password is in %s", test.name, said)
		}
	}
}
