package main

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"math/big"
	"net/http"
	"time"
)

// issuer serves its public key at /keys and a token for the claims of the query at /token.
func issuer(ctx context.Context, arguments []string) error {
	flags := flag.NewFlagSet("issuer", flag.ExitOnError)
	address := flags.String("address", ":8080", "address to listen on")
	_ = flags.Parse(arguments)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	encode := base64.RawURLEncoding.EncodeToString
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": []any{map[string]string{"kty": "RSA", "alg": "RS256", "use": "sig",
			"kid": "one", "n": encode(key.N.Bytes()), "e": encode(big.NewInt(int64(key.E)).Bytes())}}})
	})
	mux.HandleFunc("/token", func(w http.ResponseWriter, q *http.Request) {
		claims := map[string]any{"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix()}
		for name, values := range q.URL.Query() {
			claims[name] = values[0]
		}
		body, _ := json.Marshal(claims)
		text := encode([]byte(`{"alg":"RS256","kid":"one","typ":"JWT"}`)) + "." + encode(body)
		sum := sha256.Sum256([]byte(text))
		signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = w.Write([]byte(text + "." + encode(signature)))
	})
	server := &http.Server{Addr: *address, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
