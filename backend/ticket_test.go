package backend_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-coord/coord/backend"
)

func TestTicket_IsPrintedWithoutItsPassword(t *testing.T) {
	ticket := backend.Ticket{Service: "zookeeper", ID: 0x17, Password: []byte("secretsecret1234"), Server: "zk1:2181"}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, verb+"\n", ticket)
		fmt.Fprintf(&out, verb+"\n", &ticket)
		fmt.Fprintf(&out, verb+"\n", struct{ T backend.Ticket }{ticket})
	}
	slog.New(slog.NewJSONHandler(&out, nil)).Info("opened", "ticket", ticket)
	slog.New(slog.NewTextHandler(&out, nil)).Info("opened", "ticket", ticket)
	text, err := json.Marshal(ticket)
	if err != nil {
		t.Fatal(err)
	}
	out.Write(text)
	for _, secret := range []string{"secret", fmt.Sprintf("%x", "secret"), fmt.Sprint([]byte("secret"))[1:10], "c2VjcmV0"} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("%q is in %s", secret, out.String())
		}
	}
	if n := strings.Count(out.String(), "zookeeper session 0x17 of zk1:2181"); n < 20 {
		t.Errorf("the session is named %d times in %s", n, out.String())
	}
}
