package zktest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Certificates are a new certificate authority with one server and one client certificate,
// all valid for an hour. Certificates of another call are not trusted.
type Certificates struct {
	server TLSOptions
	client tls.Config
}

// NewCertificates makes new certificates and writes the server's files to dir,
// which must exist.
func NewCertificates(dir string) (*Certificates, error) {
	ca, err := newCertificate("authority", nil)
	if err != nil {
		return nil, fmt.Errorf("zktest: certificates: %w", err)
	}
	server, err := newCertificate("server", ca)
	if err != nil {
		return nil, fmt.Errorf("zktest: certificates: %w", err)
	}
	client, err := newCertificate("client", ca)
	if err != nil {
		return nil, fmt.Errorf("zktest: certificates: %w", err)
	}
	c := &Certificates{server: TLSOptions{
		KeyStore:   filepath.Join(dir, "server.pem"),
		TrustStore: filepath.Join(dir, "authority.pem"),
	}}
	if err := os.WriteFile(c.server.KeyStore, append(server.keyPEM, server.certPEM...), 0o600); err != nil {
		return nil, fmt.Errorf("zktest: certificates: %w", err)
	}
	if err := os.WriteFile(c.server.TrustStore, ca.certPEM, 0o600); err != nil {
		return nil, fmt.Errorf("zktest: certificates: %w", err)
	}
	c.client.RootCAs = x509.NewCertPool()
	c.client.RootCAs.AddCert(ca.cert)
	c.client.Certificates = []tls.Certificate{{Certificate: [][]byte{client.cert.Raw}, PrivateKey: client.key}}
	return c, nil
}

// ServerTLS returns options for servers that use these certificates and require client
// certificates.
func (c *Certificates) ServerTLS() *TLSOptions {
	o := c.server
	return &o
}

// ClientConfig returns a configuration that trusts the server and presents the
// client's certificate. The caller may change it.
func (c *Certificates) ClientConfig() *tls.Config { return c.client.Clone() }

type certificate struct {
	cert            *x509.Certificate
	key             *ecdsa.PrivateKey
	certPEM, keyPEM []byte
}

// newCertificate makes a certificate for 127.0.0.1 that issuer signed, or an
// authority without an issuer.
func newCertificate(name string, issuer *certificate) (*certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "coord test " + name},
		NotBefore:    now.Add(-time.Hour), // clocks differ
		NotAfter:     now.Add(time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
	parent, signer := template, key
	if issuer == nil {
		template.IsCA, template.BasicConstraintsValid = true, true
		template.KeyUsage = x509.KeyUsageCertSign
	} else {
		parent, signer = issuer.cert, issuer.key
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
		template.DNSNames = []string{"localhost"}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return &certificate{
		cert:    cert,
		key:     key,
		certPEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		keyPEM:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
	}, nil
}
