/* lexicon.h - the words of the demonstration corpus: English beside French, with the gender, number
 * and kinds that agreement needs. */
#ifndef FV_LEXICON_H
#define FV_LEXICON_H

/* What a noun is, and what a verb takes: sets of these. */
enum {
    PERSON = 1,
    ANIMAL = 2,
    FOOD = 4,
    DRINK = 8,
    THING = 16,
    PLACE = 32,
    TEXT = 64,
    LIVING = PERSON | ANIMAL
};

typedef struct noun {
    const char *en, *en_plural; /* no plural: a substance ("water") */
    const char *fr, *fr_plural;
    char gender; /* 'm' or 'f' */
    int kind;
} noun;

static const noun nouns[] = {
    {"boy", "boys", "garçon", "garçons", 'm', PERSON},
    {"girl", "girls", "fille", "filles", 'f', PERSON},
    {"man", "men", "homme", "hommes", 'm', PERSON},
    {"woman", "women", "femme", "femmes", 'f', PERSON},
    {"child", "children", "enfant", "enfants", 'm', PERSON},
    {"teacher", "teachers", "professeur", "professeurs", 'm', PERSON},
    {"student", "students", "étudiant", "étudiants", 'm', PERSON},
    {"doctor", "doctors", "médecin", "médecins", 'm', PERSON},
    {"singer", "singers", "chanteuse", "chanteuses", 'f', PERSON},
    {"neighbour", "neighbours", "voisin", "voisins", 'm', PERSON},
    {"friend", "friends", "ami", "amis", 'm', PERSON},
    {"sister", "sisters", "sœur", "sœurs", 'f', PERSON},
    {"brother", "brothers", "frère", "frères", 'm', PERSON},
    {"actress", "actresses", "actrice", "actrices", 'f', PERSON},
    {"baker", "bakers", "boulanger", "boulangers", 'm', PERSON},
    {"farmer", "farmers", "fermier", "fermiers", 'm', PERSON},
    {"cat", "cats", "chat", "chats", 'm', ANIMAL},
    {"dog", "dogs", "chien", "chiens", 'm', ANIMAL},
    {"bird", "birds", "oiseau", "oiseaux", 'm', ANIMAL},
    {"horse", "horses", "cheval", "chevaux", 'm', ANIMAL},
    {"cow", "cows", "vache", "vaches", 'f', ANIMAL},
    {"wolf", "wolves", "loup", "loups", 'm', ANIMAL},
    {"mouse", "mice", "souris", "souris", 'f', ANIMAL},
    {"rabbit", "rabbits", "lapin", "lapins", 'm', ANIMAL},
    {"bear", "bears", "ours", "ours", 'm', ANIMAL},
    {"goat", "goats", "chèvre", "chèvres", 'f', ANIMAL},
    {"turtle", "turtles", "tortue", "tortues", 'f', ANIMAL},
    {"donkey", "donkeys", "âne", "ânes", 'm', ANIMAL},
    {"apple", "apples", "pomme", "pommes", 'f', FOOD},
    {"pear", "pears", "poire", "poires", 'f', FOOD},
    {"orange", "oranges", "orange", "oranges", 'f', FOOD},
    {"cherry", "cherries", "cerise", "cerises", 'f', FOOD},
    {"strawberry", "strawberries", "fraise", "fraises", 'f', FOOD},
    {"tomato", "tomatoes", "tomate", "tomates", 'f', FOOD},
    {"potato", "potatoes", "pomme de terre", "pommes de terre", 'f', FOOD},
    {"carrot", "carrots", "carotte", "carottes", 'f', FOOD},
    {"egg", "eggs", "œuf", "œufs", 'm', FOOD},
    {"cake", "cakes", "gâteau", "gâteaux", 'm', FOOD},
    {"onion", "onions", "oignon", "oignons", 'm', FOOD},
    {"sandwich", "sandwiches", "sandwich", "sandwichs", 'm', FOOD},
    {"biscuit", "biscuits", "biscuit", "biscuits", 'm', FOOD},
    {"bread", 0, "pain", 0, 'm', FOOD},
    {"cheese", 0, "fromage", 0, 'm', FOOD},
    {"rice", 0, "riz", 0, 'm', FOOD},
    {"soup", 0, "soupe", 0, 'f', FOOD},
    {"butter", 0, "beurre", 0, 'm', FOOD},
    {"water", 0, "eau", 0, 'f', DRINK},
    {"milk", 0, "lait", 0, 'm', DRINK},
    {"coffee", 0, "café", 0, 'm', DRINK},
    {"tea", 0, "thé", 0, 'm', DRINK},
    {"juice", 0, "jus", 0, 'm', DRINK},
    {"lemonade", 0, "limonade", 0, 'f', DRINK},
    {"table", "tables", "table", "tables", 'f', THING},
    {"chair", "chairs", "chaise", "chaises", 'f', THING},
    {"lamp", "lamps", "lampe", "lampes", 'f', THING},
    {"bag", "bags", "sac", "sacs", 'm', THING},
    {"hat", "hats", "chapeau", "chapeaux", 'm', THING},
    {"shoe", "shoes", "chaussure", "chaussures", 'f', THING},
    {"shirt", "shirts", "chemise", "chemises", 'f', THING},
    {"coat", "coats", "manteau", "manteaux", 'm', THING},
    {"key", "keys", "clé", "clés", 'f', THING},
    {"umbrella", "umbrellas", "parapluie", "parapluies", 'm', THING},
    {"watch", "watches", "montre", "montres", 'f', THING},
    {"bicycle", "bicycles", "vélo", "vélos", 'm', THING},
    {"car", "cars", "voiture", "voitures", 'f', THING},
    {"boat", "boats", "bateau", "bateaux", 'm', THING},
    {"box", "boxes", "boîte", "boîtes", 'f', THING},
    {"bottle", "bottles", "bouteille", "bouteilles", 'f', THING},
    {"cup", "cups", "tasse", "tasses", 'f', THING},
    {"flower", "flowers", "fleur", "fleurs", 'f', THING},
    {"tree", "trees", "arbre", "arbres", 'm', THING},
    {"ladder", "ladders", "échelle", "échelles", 'f', THING},
    {"book", "books", "livre", "livres", 'm', TEXT},
    {"letter", "letters", "lettre", "lettres", 'f', TEXT},
    {"newspaper", "newspapers", "journal", "journaux", 'm', TEXT},
    {"story", "stories", "histoire", "histoires", 'f', TEXT},
    {"poem", "poems", "poème", "poèmes", 'm', TEXT},
    {"message", "messages", "message", "messages", 'm', TEXT},
    {"house", "houses", "maison", "maisons", 'f', PLACE},
    {"garden", "gardens", "jardin", "jardins", 'm', PLACE},
    {"school", "schools", "école", "écoles", 'f', PLACE},
    {"kitchen", "kitchens", "cuisine", "cuisines", 'f', PLACE},
    {"room", "rooms", "chambre", "chambres", 'f', PLACE},
    {"office", "offices", "bureau", "bureaux", 'm', PLACE},
    {"shop", "shops", "magasin", "magasins", 'm', PLACE},
    {"church", "churches", "église", "églises", 'f', PLACE},
    {"hospital", "hospitals", "hôpital", "hôpitaux", 'm', PLACE},
    {"museum", "museums", "musée", "musées", 'm', PLACE},
    {"park", "parks", "parc", "parcs", 'm', PLACE},
    {"village", "villages", "village", "villages", 'm', PLACE},
    {"town", "towns", "ville", "villes", 'f', PLACE},
    {"forest", "forests", "forêt", "forêts", 'f', PLACE},
};

typedef struct adjective {
    const char *en;
    const char *fr[4];    /* masculine, feminine, masculine plural, feminine plural */
    const char *fr_vowel; /* masculine before a vowel ("vieil"), or NULL */
    char place;           /* 'b' before the noun, 'a' after it */
    int kinds;            /* of nouns it goes with */
} adjective;

static const adjective adjectives[] = {
    {"big", {"grand", "grande", "grands", "grandes"}, 0, 'b', ANIMAL | THING | PLACE},
    {"small",
     {"petit", "petite", "petits", "petites"},
     0,
     'b',
     LIVING | FOOD | THING | PLACE | TEXT},
    {"old", {"vieux", "vieille", "vieux", "vieilles"}, "vieil", 'b', LIVING | THING | PLACE | TEXT},
    {"new", {"nouveau", "nouvelle", "nouveaux", "nouvelles"}, "nouvel", 'b', THING | PLACE | TEXT},
    {"beautiful", {"beau", "belle", "beaux", "belles"}, "bel", 'b', LIVING | THING | PLACE | TEXT},
    {"good", {"bon", "bonne", "bons", "bonnes"}, 0, 'b', PERSON | FOOD | DRINK | TEXT},
    {"young", {"jeune", "jeune", "jeunes", "jeunes"}, 0, 'b', LIVING},
    {"red", {"rouge", "rouge", "rouges", "rouges"}, 0, 'a', FOOD | THING},
    {"green", {"vert", "verte", "verts", "vertes"}, 0, 'a', FOOD | THING},
    {"black", {"noir", "noire", "noirs", "noires"}, 0, 'a', ANIMAL | THING},
    {"white", {"blanc", "blanche", "blancs", "blanches"}, 0, 'a', ANIMAL | THING | PLACE},
    {"grey", {"gris", "grise", "gris", "grises"}, 0, 'a', ANIMAL | THING},
    {"yellow", {"jaune", "jaune", "jaunes", "jaunes"}, 0, 'a', FOOD | THING},
    {"cold", {"froid", "froide", "froids", "froides"}, 0, 'a', FOOD | DRINK},
    {"hot", {"chaud", "chaude", "chauds", "chaudes"}, 0, 'a', FOOD | DRINK},
    {"sweet", {"sucré", "sucrée", "sucrés", "sucrées"}, 0, 'a', FOOD | DRINK},
    {"happy", {"heureux", "heureuse", "heureux", "heureuses"}, 0, 'a', LIVING},
    {"tired", {"fatigué", "fatiguée", "fatigués", "fatiguées"}, 0, 'a', LIVING},
    {"clever", {"intelligent", "intelligente", "intelligents", "intelligentes"}, 0, 'a', LIVING},
    {"quiet", {"calme", "calme", "calmes", "calmes"}, 0, 'a', LIVING | PLACE},
    {"interesting",
     {"intéressant", "intéressante", "intéressants", "intéressantes"},
     0,
     'a',
     PERSON | TEXT | PLACE},
    {"heavy", {"lourd", "lourde", "lourds", "lourdes"}, 0, 'a', THING},
    {"empty", {"vide", "vide", "vides", "vides"}, 0, 'a', PLACE},
    {"expensive", {"cher", "chère", "chers", "chères"}, 0, 'a', THING | FOOD},
};

typedef struct verb {
    const char *en, *en_s; /* "eat", "eats" */
    const char *fr_infinitive;
    const char *fr[5]; /* je, il, nous, vous, ils */
    int takes;         /* kinds of object */
    int who;           /* kinds of subject */
} verb;

static const verb verbs[] = {
    {"eat", "eats", "manger", {"mange", "mange", "mangeons", "mangez", "mangent"}, FOOD, LIVING},
    {"drink", "drinks", "boire", {"bois", "boit", "buvons", "buvez", "boivent"}, DRINK, LIVING},
    {"see",
     "sees",
     "voir",
     {"vois", "voit", "voyons", "voyez", "voient"},
     LIVING | THING | PLACE,
     LIVING},
    {"buy",
     "buys",
     "acheter",
     {"achète", "achète", "achetons", "achetez", "achètent"},
     FOOD | DRINK | THING | TEXT,
     PERSON},
    {"sell",
     "sells",
     "vendre",
     {"vends", "vend", "vendons", "vendez", "vendent"},
     FOOD | DRINK | THING | TEXT,
     PERSON},
    {"find",
     "finds",
     "trouver",
     {"trouve", "trouve", "trouvons", "trouvez", "trouvent"},
     LIVING | FOOD | THING | TEXT,
     LIVING},
    {"take",
     "takes",
     "prendre",
     {"prends", "prend", "prenons", "prenez", "prennent"},
     FOOD | DRINK | THING | TEXT,
     PERSON},
    {"draw",
     "draws",
     "dessiner",
     {"dessine", "dessine", "dessinons", "dessinez", "dessinent"},
     LIVING | THING | PLACE,
     PERSON},
    {"paint",
     "paints",
     "peindre",
     {"peins", "peint", "peignons", "peignez", "peignent"},
     LIVING | THING | PLACE,
     PERSON},
    {"watch",
     "watches",
     "regarder",
     {"regarde", "regarde", "regardons", "regardez", "regardent"},
     LIVING,
     LIVING},
    {"help", "helps", "aider", {"aide", "aide", "aidons", "aidez", "aident"}, LIVING, PERSON},
    {"wash",
     "washes",
     "laver",
     {"lave", "lave", "lavons", "lavez", "lavent"},
     FOOD | THING | ANIMAL,
     PERSON},
    {"carry",
     "carries",
     "porter",
     {"porte", "porte", "portons", "portez", "portent"},
     THING | TEXT,
     PERSON},
    {"prepare",
     "prepares",
     "préparer",
     {"prépare", "prépare", "préparons", "préparez", "préparent"},
     FOOD | DRINK,
     PERSON},
    {"read", "reads", "lire", {"lis", "lit", "lisons", "lisez", "lisent"}, TEXT, PERSON},
    {"write",
     "writes",
     "écrire",
     {"écris", "écrit", "écrivons", "écrivez", "écrivent"},
     TEXT,
     PERSON},
    {"visit",
     "visits",
     "visiter",
     {"visite", "visite", "visitons", "visitez", "visitent"},
     PLACE,
     PERSON},
    {"open", "opens", "ouvrir", {"ouvre", "ouvre", "ouvrons", "ouvrez", "ouvrent"}, TEXT, PERSON},
    {"choose",
     "chooses",
     "choisir",
     {"choisis", "choisit", "choisissons", "choisissez", "choisissent"},
     FOOD | DRINK | THING | TEXT,
     PERSON},
    {"forget",
     "forgets",
     "oublier",
     {"oublie", "oublie", "oublions", "oubliez", "oublient"},
     THING | TEXT,
     PERSON},
    {"follow",
     "follows",
     "suivre",
     {"suis", "suit", "suivons", "suivez", "suivent"},
     LIVING,
     LIVING},
    {"hear",
     "hears",
     "entendre",
     {"entends", "entend", "entendons", "entendez", "entendent"},
     LIVING,
     LIVING},
};

/* Verbs that govern an infinitive: "I want to eat".  With a noun, "like" speaks of the whole kind:
 * "j'aime les pommes". */
static const verb modals[] = {
    {"like to", "likes to", "aimer", {"aime", "aime", "aimons", "aimez", "aiment"}, 0, PERSON},
    {"want to", "wants to", "vouloir", {"veux", "veut", "voulons", "voulez", "veulent"}, 0, PERSON},
    {"have to", "has to", "devoir", {"dois", "doit", "devons", "devez", "doivent"}, 0, PERSON},
    {"prefer to",
     "prefers to",
     "préférer",
     {"préfère", "préfère", "préférons", "préférez", "préfèrent"},
     0,
     PERSON},
    {"hope to",
     "hopes to",
     "espérer",
     {"espère", "espère", "espérons", "espérez", "espèrent"},
     0,
     PERSON},
};
static const verb like = {"like",
                          "likes",
                          "aimer",
                          {"aime", "aime", "aimons", "aimez", "aiment"},
                          FOOD | DRINK | ANIMAL | TEXT,
                          PERSON};

typedef struct pronoun {
    const char *en, *fr, *en_be, *fr_be;
    int person; /* which form of a French verb */
    bool third; /* English takes -s */
    char gender;
    bool plural;
} pronoun;

static const pronoun pronouns[] = {
    {"I", "je", "am", "suis", 0, false, 'm', false},
    {"you", "vous", "are", "êtes", 3, false, 'm', true},
    {"he", "il", "is", "est", 1, true, 'm', false},
    {"she", "elle", "is", "est", 1, true, 'f', false},
    {"we", "nous", "are", "sommes", 2, false, 'm', true},
    {"they", "ils", "are", "sont", 4, false, 'm', true},
};

typedef struct owner {
    const char *en;
    const char *fr[3]; /* masculine, feminine, plural */
} owner;

static const owner owners[] = {
    {"my", {"mon", "ma", "mes"}},         {"your", {"votre", "votre", "vos"}},
    {"his", {"son", "sa", "ses"}},        {"our", {"notre", "notre", "nos"}},
    {"their", {"leur", "leur", "leurs"}},
};

static const char *const numbers[][2] = {
    {"two", "deux"}, {"three", "trois"}, {"four", "quatre"}, {"five", "cinq"}, {"ten", "dix"}};
static const char *const times[][2] = {
    {"today", "aujourd'hui"},      {"every day", "tous les jours"}, {"in the morning", "le matin"},
    {"in the evening", "le soir"}, {"now", "maintenant"},
};
static const char *const preps[][2] = {{"in", "dans"},
                                       {"in front of", "devant"},
                                       {"behind", "derrière"}};

#endif
