package supervise

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-coord/coord/backend"
)

var example = backend.Ticket{Service: "zookeeper", ID: -0x17, Password: []byte("0123456789abcdef"), Timeout: 10 * time.Second, Server: "zk1:2181"}

func TestMessage_IsDecodedAsItWasEncoded(t *testing.T) {
	long := example
	long.Server = strings.Repeat("s", 256)
	for _, c := range []struct {
		kind     Kind
		in, want backend.Ticket
	}{
		{Opened, example, example},
		{Opened, backend.Ticket{}, backend.Ticket{}},
		{Ended, example, backend.Ticket{Service: example.Service, ID: example.ID}},
		{Opened, long, backend.Ticket{Service: long.Service, ID: long.ID, Password: long.Password, Timeout: long.Timeout}},
	} {
		b, err := Encode(c.kind, c.in)
		if err != nil {
			t.Fatal(err)
		}
		kind, got, err := Decode(b)
		if err != nil || kind != c.kind || !reflect.DeepEqual(got, c.want) || len(b) > MaxMessage {
			t.Errorf("%d %v: %d %v %v", c.kind, c.in, kind, got, err)
		}
		for i := range b {
			if _, _, err := Decode(b[:i]); err == nil {
				t.Errorf("%d of %d bytes are a message", i, len(b))
			}
		}
		if _, _, err := Decode(append(b, 0)); err == nil {
			t.Error("a byte too many")
		}
	}
	for _, bad := range []backend.Ticket{{Service: strings.Repeat("s", 33)}, {Password: make([]byte, 65)}, {Timeout: -1}, {Timeout: 1 << 62}} {
		if b, err := Encode(Opened, bad); err == nil {
			t.Errorf("encoded as %x", b)
		}
	}
}

// FuzzDecode: what Decode accepts is encoded as it was.
func FuzzDecode(f *testing.F) {
	for _, k := range []Kind{Opened, Ended} {
		b, err := Encode(k, example)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		k, ticket, err := Decode(b)
		if err != nil {
			if !reflect.DeepEqual(ticket, backend.Ticket{}) {
				t.Errorf("%x: a ticket with an error", b)
			}
			return
		}
		again, err := Encode(k, ticket)
		if err != nil || !bytes.Equal(again, b) {
			t.Errorf("%x is encoded as %x: %v", b, again, err)
		}
	})
}
